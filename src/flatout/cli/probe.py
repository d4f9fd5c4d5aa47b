from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, ConfigPath, Json, app, print_json


@app.command()
def probe(
    config: ConfigPath,
    assignments: Assignments = None,
    seconds: Annotated[float, typer.Option(min=0.5, max=30, help="How long each of the five phases measures.")] = 5.0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write (default runs/<name>-probe).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Calibrate the performance model for a recipe: a minute or so, nothing is trained for good.

    The device with synthetic batches of two sizes, loading by one core and by
    all, then real steps to see what the model misses. `flatout predict DIR`
    answers from it.

    Examples:  flatout probe recipes/demo.yaml   |   flatout predict runs/demo-probe --if data.workers=4
    """
    from flatout.commands.probe import probe_recipe
    from flatout.commands.show import parse_assignments

    def say(text: str) -> None:
        if not as_json:
            typer.echo(f"probing: {text}", err=True)

    found = probe_recipe(config, parse_assignments(assignments or []), seconds, out, say)
    if as_json:
        told = {"directory": str(found.directory), "residual": found.residual, "seconds": found.seconds}
        print_json({**told, "calibration": found.calibration.to_dict()})
        return
    for line in found.lines():
        typer.echo(line)
    typer.echo(f"{found.directory / 'probe.json'} in {found.seconds:.0f} s; flatout predict {found.directory} --if ...")
