from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, ConfigPath, Json, app, print_json


@app.command()
def tune(
    config: ConfigPath,
    assignments: Assignments = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RECIPE", help="Write the tuned recipe (default CONFIG.tuned.yaml).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="How long each setting is measured.")] = 4.0,
    keep_batch: Annotated[bool, typer.Option("--keep-batch", help="Leave the batch size (and so the result).")] = False,
    compile_too: Annotated[bool, typer.Option("--compile", help="Try torch.compile as well; slow to try.")] = False,
    as_json: Json = False,
) -> None:
    """Find batch size, workers, precision and memory format for the most samples a second.

    A probe calibrates the model, the model ranks all combinations, at most a
    quarter of them is measured, each in a process of its own; the best and the
    recipe as given are measured again in turns, and only these turns count. The
    claim is of the recipe's whole run: start, the first epoch that fills a cache,
    later ones, validations. A larger batch comes with a scaled learning rate.

    Examples:  flatout tune recipes/demo.yaml   |   flatout tune my.yaml --keep-batch --out fast.yaml
    """
    from flatout.commands.show import parse_assignments
    from flatout.commands.tune import told_lines, tune_recipe

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text, err=True)

    target = out or config.with_suffix(".tuned.yaml")
    tuned = tune_recipe(config, parse_assignments(assignments or []), seconds, keep_batch, compile_too, target, say)
    if as_json:
        told = {"recipe": str(target), "gain": tuned.claim.to_dict(), "changes": tuned.changes, "grid": tuned.grid_size}
        print_json(
            {
                **told,
                "seconds": tuned.seconds,
                "chosen": asdict(tuned.chosen),
                "given": asdict(tuned.given),
                "trials": [asdict(each) for each in tuned.trials],
            }
        )
        return
    for line in told_lines(tuned, target):
        typer.echo(line)
