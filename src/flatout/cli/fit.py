from typing import Annotated

import typer

from flatout.cli.apps import Assignments, ConfigPath, Json, app, print_answer


@app.command()
def fit(
    recipe: ConfigPath,
    assignments: Assignments = None,
    gpu: Annotated[str | None, typer.Option(help="Only these cards, e.g. T4,A10G.")] = None,
    as_json: Json = False,
) -> None:
    """Will it fit? Peak memory by part, and the largest batch on each card.

    The model's step is traced on tensors without memory, in seconds and without
    a card; context, workspace and fragments are added as cards have them.

    Example:  flatout fit recipes/demo.yaml --gpu T4,A10G --set data.batch_size=1024
    """
    from flatout.commands.fit import fit_recipe, fit_text
    from flatout.commands.plan import parse_assignments

    names = [each.strip() for each in (gpu or "").split(",") if each.strip()]
    found = fit_recipe(recipe, parse_assignments(assignments or []), names)
    print_answer(found, as_json, fit_text)
