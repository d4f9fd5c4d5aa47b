from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_answer


@app.command()
def simulate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Scenario (YAML), or a trace of flatout serve (.jsonl).")
    ],
    as_json: Json = False,
) -> None:
    """Simulate shared batches: jobs, speeds, producers, cold starts, cache size and prices that are not here.

    The coordinator is the real one, in simulated time. Beside it: independent
    loaders, an LRU cache, lockstep and a window behind the slowest job. A trace
    of flatout serve --trace is decided again, and compared.

    Examples:  flatout simulate recipes/simulations/shared.yaml   |   flatout simulate trace.jsonl --json
    """
    from flatout.commands.simulate import simulate as run_simulation
    from flatout.commands.simulate import simulation_shown

    values = run_simulation(file)
    print_answer(values, as_json, simulation_shown)
    if values.get("different"):
        raise typer.Exit(1)
