import gc
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.apps import Assignments, ConfigPath, Json, app, draw, print_json
from flatout.machine.available_memory import require_start
from flatout.machine.lasting_output import leave


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
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Switches that may save training time: speedups=auto (see docs/faster.md)."),
    ] = False,
    rehearse: Annotated[
        str | None,
        typer.Option("--rehearse", metavar="cuda", help="Dry run for a GPU that is not here; writes no run."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="ID", help="The plan this run follows; flatout plan --score compares."),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Look at it in the browser meanwhile; the address is printed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a recipe. The same command again resumes where it stopped.

    Ctrl-C, SIGTERM or a dropped connection save a checkpoint and end; a second Ctrl-C ends at once, nohup goes on.

    Examples:  flatout train recipes/demo.yaml   |   flatout train my.yaml --set train.lr=0.1 --run runs/low-lr
    """
    if fast:
        assignments = ["speedups=auto", *(assignments or [])]
    if rehearse is not None:
        _rehearse(config, assignments or [], rehearse, as_json)
        return
    require_start()
    gc.disable()  # it finds nothing in what imports leave, and takes a tenth of their time to look
    from flatout.commands.show import parse_assignments
    from flatout.commands.train import train_run

    gc.freeze()
    gc.enable()
    overrides = parse_assignments(assignments or [])
    if dashboard and "WORLD_SIZE" not in os.environ:
        from flatout.web.server import start_beside

        start_beside(Path("runs") if run is None else run.parent)
    if plan is not None:
        from flatout.commands.plan_files import find_plan, follow_plan, scores_text

        find_plan(plan)
    finished = train_run(config, overrides, run, fresh, warm_start, accept_changed_data, as_json, whole_process=True)
    if finished.summary:  # else one of several ranks; rank 0 prints
        scores = [] if plan is None else follow_plan(plan, finished.directory)
        _print(finished, as_json)
        if scores and not as_json:
            draw(scores_text(scores))
    if "WORLD_SIZE" in os.environ:
        leave(0)


def _print(finished: Any, as_json: bool) -> None:
    if as_json:
        print_json(finished.summary)
    else:
        from flatout.commands.report import print_report  # not before it is needed

        print_report(finished)


def _rehearse(config: Path, assignments: list[str], device: str, as_json: bool) -> None:
    from flatout.commands.rehearse import rehearse
    from flatout.commands.show import parse_assignments
    from flatout.errors import RunFailed

    found = rehearse(config, parse_assignments(assignments), device)
    if as_json:
        print_json(vars(found))
    else:
        for line in found.lines():
            typer.echo(line)
    if found.failed:
        raise RunFailed(f"{len(found.failed)} part(s) of the rehearsal failed; what would fail on a GPU is named above")
