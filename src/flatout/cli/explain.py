from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, RunPath, app, draw, print_json


@app.command()
def explain(
    run: RunPath,
    fix: Annotated[
        Path | None, typer.Option("--fix", metavar="RECIPE", help="Write a new recipe with the fixes; nothing is run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What holds this run back, and what would it buy to change it?

    A verdict in one sentence, then findings, best first: evidence from the
    run's own files, a fix, the predicted gain with its interval, and dollars.
    Works on finished, running and dead runs. Written to RUN/findings.json.

    Examples:  flatout explain runs/demo   |   flatout explain runs/demo --fix faster.yaml
    """
    from flatout.commands.drop_in import with_drop_in
    from flatout.commands.explain import explain as explain_run
    from flatout.commands.explain import keep_explanation, read_run, render_explanation, write_fixed_recipe

    found = read_run(run)
    explanation = with_drop_in(found, explain_run(found))
    keep_explanation(found, explanation)
    changes = write_fixed_recipe(found, explanation, fix) if fix is not None else None
    if as_json:
        print_json({**explanation.to_dict(), **({} if fix is None else {"recipe": str(fix), "changes": changes})})
        return
    draw(render_explanation(found.name, explanation))
    if fix is not None:
        typer.echo(f"{fix}: {', '.join(f'{key}={value}' for key, value in (changes or {}).items())}", err=True)
