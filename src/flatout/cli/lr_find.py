from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, ConfigPath, Json, app, print_json


@app.command(name="lr-find")
def lr_find(
    config: ConfigPath,
    assignments: Assignments = None,
    low: Annotated[float, typer.Option(help="Lowest rate to try.")] = 1e-5,
    high: Annotated[float, typer.Option(help="Highest rate to try.")] = 10.0,
    steps: Annotated[int, typer.Option(help="Number of rates to try.")] = 100,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write (default runs/<name>-lr-find).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learning-rate range test: raises the rate step by step, plots the loss and suggests a peak rate.

    Use the suggestion as train.lr. Nothing of an existing run is touched.
    """
    from flatout.commands.lr_find import find_learning_rate
    from flatout.commands.show import parse_assignments

    result = find_learning_rate(config, parse_assignments(assignments or []), low, high, steps, out, quiet=as_json)
    if as_json:
        print_json(result)
        return
    suggestions = result["suggestions"]
    if suggestions["steepest"] is None:
        typer.echo("no suggestion: the loss did not fall; try a wider range with --low and --high, or more --steps")
    else:
        typer.echo(
            f"suggested train.lr: {suggestions['steepest']:.3g} (steepest fall), "
            f"{suggestions['minimum_tenth']:.3g} (a tenth of the minimum)"
        )
    typer.echo(f"plot: {result['plot']}")
