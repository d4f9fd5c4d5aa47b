from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_answer

prices_app = typer.Typer(help="Machines and prices that plans use.", no_args_is_help=True)
app.add_typer(prices_app, name="prices")


@prices_app.command()
def show(
    prices: Annotated[Path | None, typer.Option("--file", help="Price file on top of the shipped one.")] = None,
    cards: Annotated[bool, typer.Option("--cards", help="Cards and their figures instead.")] = False,
    as_json: Json = False,
) -> None:
    """Every machine with its card, vCPUs and dollars an hour; prices older than 90 days are said."""
    from flatout.commands.prices import cards_known, cards_table, machines_known, machines_table

    if cards:
        print_answer(cards_known(), as_json, cards_table)
    else:
        print_answer(machines_known(prices), as_json, machines_table)


@prices_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV of SkyPilot's catalogue.")],
    out: Annotated[Path, typer.Option(help="Price file to write.")] = Path("prices.yaml"),
    as_json: Json = False,
) -> None:
    """Turn a CSV of SkyPilot's catalogue into a price file, to be named in cost.prices."""
    from flatout.commands.prices import import_catalogue, imported_text

    print_answer(import_catalogue(file, out, date.today()), as_json, imported_text)
