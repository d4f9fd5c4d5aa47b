from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.main import app
from flatout.cli.options import Assignments, ConfigPath, Json
from flatout.cli.output import print_json


@app.command()
def train(
    config: ConfigPath,
    assignments: Assignments = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Run directory (default runs/<name>).")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; the old run is moved aside, not deleted.")
    ] = False,
    warm_start: Annotated[
        Path | None,
        typer.Option("--warm-start", metavar="FILE", help="Take the weights (only) from a .safetensors file."),
    ] = None,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="Resume although the dataset is not the same any more.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a recipe. The same command again resumes where it stopped.

    Ctrl-C saves a checkpoint and ends; a second Ctrl-C ends at once.

    Examples:  flatout train recipes/demo.yaml   |   flatout train my.yaml --set train.lr=0.1 --run runs/low-lr
    """
    from flatout.app.report_run import print_report
    from flatout.app.show import parse_assignments
    from flatout.app.train_run import train_run

    overrides = parse_assignments(assignments or [])
    finished = train_run(config, overrides, run, fresh, warm_start, accept_changed_data, as_json, whole_process=True)
    if not finished.summary:  # one of several ranks; rank 0 prints
        return
    if as_json:
        print_json(finished.summary)
    else:
        print_report(finished)
