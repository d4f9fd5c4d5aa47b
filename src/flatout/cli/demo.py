from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, draw, print_json


@app.command()
def demo(
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="Run directory.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Make a small dataset, train on it, report and explain: under two minutes on two cores."""
    from flatout.commands.demo import NEXT_STEPS, run_demo
    from flatout.commands.explain import explain, keep_explanation, render_explanation
    from flatout.commands.report import print_report

    finished = run_demo(run, quiet=as_json)
    if as_json:
        print_json(finished.summary)
    else:
        print_report(finished)
        explanation = explain(finished)
        keep_explanation(finished, explanation)
        draw(render_explanation(finished.name, explanation))
        typer.echo(NEXT_STEPS.format(run=finished.directory))
