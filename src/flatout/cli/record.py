from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_json


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def record(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="The command as you would give it without flatout."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Run directory to make (default runs/<script's name>)."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run in reports.")] = None,
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="NAME", help="What is paid for, as in flatout prices show.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Not a word on stderr at the end.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Look at it in the browser meanwhile; the address is printed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The ledger of any PyTorch script, unchanged: where every second and every dollar of it went.

    Runs the command with hooks in its environment; python, torchrun, accelerate
    launch and everything they start are recorded into one run directory, for
    report, explain, predict and compare. Output, exit code, signals and results
    are the script's own; if the recorder fails, the script goes on without it.

    Examples:  flatout record -- python train.py --epochs 3
               flatout record --run runs/two --instance g5.xlarge -- torchrun --nproc-per-node 2 train.py
    """
    from flatout.commands.record import end_like, say_recorded
    from flatout.commands.record import record as record_command

    if dashboard:
        from flatout.web.server import start_beside

        start_beside(Path("runs") if run is None else run.parent)
    recorded, code = record_command(command or [], run, name, instance)
    if as_json:
        print_json(recorded.summary)
    elif not quiet:
        say_recorded(recorded)
    end_like(code)
