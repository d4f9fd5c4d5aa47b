from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, Json, app, print_json


@app.command()
def sweep(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe, or a YAML file with recipe: and over:.")],
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=A,B,C", help="A key and the values to try; as often as needed."),
    ] = None,
    assignments: Assignments = None,
    configs: Annotated[
        int | None, typer.Option(help="Most configurations (16): all combinations, or so many drawn by --seed.")
    ] = None,
    eta: Annotated[int | None, typer.Option(help="One of so many goes on to the next rung (2).")] = None,
    rungs: Annotated[
        str | None, typer.Option(metavar="1,2,4", help="Epochs at which the field is cut (train.epochs / eta ...).")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What decides: top1, bleu, val_loss ... (the recipe's checkpoint.metric).")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="30min|5usd", help="Stop, with checkpoints, when so much is spent.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Configurations that train at the same time (one for each card, if there are any)."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Train on this Ray cluster, or: local. Its machines see the same folders."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draws configurations (0).")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Folder of its runs (default runs/<recipe>-sweep).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; the old sweep is moved aside.")] = False,
    as_json: Json = False,
) -> None:
    """Find good settings by successive halving: all train a little, the better half goes on, until one is left.

    A rung is the end of some epoch of runs whose schedule is that of the whole length; who goes on does so from its
    checkpoint. Jobs with equal data settings share each prepared batch; another batch size is another group. A job that
    fails is ranked last, with its cause. Ctrl-C saves checkpoints; the same command goes on, after a kill -9 too.
    Where there are several cards, each job has its own.

    Example:  flatout sweep recipes/demo.yaml --over train.lr=0.05,0.1,0.2,0.4 --over data.batch_size=64,128
    """
    from flatout.commands.show import parse_assignments
    from flatout.commands.sweep import print_sweep, raise_if_unfinished, run_sweep
    from flatout.errors import ConfigError

    try:
        cuts = None if rungs is None else [int(each) for each in rungs.split(",")]
    except ValueError:
        raise ConfigError(f"--rungs is {rungs!r}; give ascending epochs, for example 1,2,4,8") from None
    options = {
        "set": parse_assignments(assignments or []),
        "configs": configs,
        "eta": eta,
        "rungs": cuts,
        "metric": metric,
        "budget": budget,
        "jobs": jobs,
        "ray": ray,
        "seed": seed,
    }
    result = run_sweep(recipe, options, over or [], runs, fresh, as_json)
    if as_json:
        print_json(result.to_dict())
    else:
        print_sweep(result)
    raise_if_unfinished(result)
