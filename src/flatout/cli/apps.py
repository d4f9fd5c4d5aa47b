"""The command line and its groups, to which each command adds itself; options that several commands share; answers.
What a command needs it imports when it runs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Answer = TypeVar("Answer")

app = typer.Typer(
    name="flatout",
    help="Train image classifiers flat out, and know where every second and every dollar went.",
    epilog="Start with: flatout demo",
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look at, make and pack datasets.", no_args_is_help=True)
config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")
recipes_app = typer.Typer(help="The recipes that come with flatout.")
app.add_typer(bench_app, name="bench")
app.add_typer(recipes_app, name="recipes")


def _print_version(wanted: bool) -> None:
    if wanted:
        from flatout import __version__

        typer.echo(f"flatout {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train image classifiers flat out, and know where every second and every dollar went."""


ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Recipe: a YAML file, or a name that flatout recipes lists.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. --set train.epochs=3.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines instead of text.")]
LayoutOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="folders, imagenet, table, webdataset, parquet, mds, or auto: found by the files' names."
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="The column that is the class, where it is not called label.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, e.g. runs/demo.")]


def print_json(values: Any) -> None:
    sys.stdout.write(json.dumps(values, indent=2, default=str) + "\n")


def print_answer(values: Answer, as_json: bool, show: Callable[[Answer], Any] | str) -> None:
    """For machines as JSON; for people as what `show` makes of it for rich to draw, or as the text that it is."""
    if as_json:
        print_json(values)
    elif isinstance(show, str):
        typer.echo(show)
    else:
        draw(show(values))


def draw(drawn: Any) -> None:
    """On the terminal: text, a table or a group of them."""
    from rich.console import Console

    Console(highlight=False).print(drawn, markup=False)
