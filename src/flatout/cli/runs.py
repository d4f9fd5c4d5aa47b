from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, draw, print_json


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder that holds run directories.")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """List runs with their status, accuracy, speed and cost."""
    from flatout.commands.show import run_list, runs_shown

    if as_json:
        print_json(run_list(folder))
    else:
        draw(runs_shown(folder))
