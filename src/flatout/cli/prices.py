from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_answer, print_json

prices_app = typer.Typer(help="Machines and prices that plans use.", no_args_is_help=True)
app.add_typer(prices_app, name="prices")


@prices_app.command()
def show(
    prices: Annotated[Path | None, typer.Option("--file", help="Price file on top of the shipped one.")] = None,
    cards: Annotated[bool, typer.Option("--cards", help="Cards and their figures instead.")] = False,
    as_json: Json = False,
) -> None:
    """Every machine with its card, vCPUs and dollars an hour; prices older than 90 days are said."""
    from flatout.commands.prices import cards_known, machines_known, print_cards, print_machines

    rows = cards_known() if cards else machines_known(prices)
    if as_json:
        print_json(rows)
    elif cards:
        print_cards(rows)
    else:
        print_machines(rows)


@prices_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV of SkyPilot's catalogue.")],
    out: Annotated[Path, typer.Option(help="Price file to write.")] = Path("prices.yaml"),
    as_json: Json = False,
) -> None:
    """Turn a CSV of SkyPilot's catalogue into a price file, to be named in cost.prices."""
    from flatout.commands.prices import import_catalogue, print_imported

    told = import_catalogue(file, out, date.today())
    print_answer(told, as_json, print_imported)
