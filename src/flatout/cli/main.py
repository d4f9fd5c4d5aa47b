"""The command line: names, options and help. Each command imports what it needs when it runs, so help is quick."""

import sys
from typing import Any

import typer

from flatout.errors import FlatoutError

app = typer.Typer(
    name="flatout",
    help="Train image classifiers flat out, and know where every second and every dollar went.",
    epilog="Start with: flatout demo",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look at, make and pack datasets.", no_args_is_help=True)
config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")


def run() -> Any:
    """Entry point: a FlatoutError is one line on stderr and its exit code; anything else is a bug with a traceback."""
    from flatout.cli import register

    register()
    try:
        return app()
    except FlatoutError as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"flatout: {message}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("flatout: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
