"""The command line and its groups, to which each command adds itself. What a command needs it imports when it runs."""

from typing import Annotated

import typer

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
