from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_json


@app.command(name="import")
def import_log(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="LOG", help="CSV log, trainer_state.json, TensorBoard event file, or a folder with one."
        ),
    ],
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Run directory to make (default runs/<log's name>).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read the log of another program into a run directory, to report on it and compare with it.

    Knows Lightning's metrics.csv, timm's summary.csv, other CSV logs with an
    epoch or step column, Hugging Face's trainer_state.json and TensorBoard events. What the log does not tell
    stays unknown; accuracy in per cent becomes a share.

    Example:  flatout import lightning_logs/version_0 --run runs/before
    """
    from flatout.commands.import_log import import_run

    made = import_run(source, run)
    if as_json:
        print_json(made.summary)
        return
    told = made.summary["imported"]
    typer.echo(f"{made.directory}: {len(made.epochs)} epochs, {len(made.steps)} steps")
    typer.echo(f"used: {', '.join(f'{theirs} as {ours}' for ours, theirs in told['columns'].items())}")
    if told["columns_not_used"]:
        typer.echo(f"not used: {', '.join(told['columns_not_used'])}")
    for note in told["notes"]:
        typer.echo(f"note: {note}")
