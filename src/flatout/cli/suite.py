from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Assignments, Json, app, print_json


@app.command()
def suite(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Suite: a YAML file, or a name that flatout recipes lists.")
    ],
    assignments: Assignments = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Folder of its runs (default runs/<name>).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a matrix of experiments one after the other and fill their table.

    The same command again goes on: what is finished is not run again unless its configuration changed, what failed is
    tried again. Ctrl-C lets the experiment under way save a checkpoint. A failed experiment is a row with its cause.
    The table is in DIR/table.md, table.html and table.json after every experiment.

    Example:  flatout suite recipes/suites/tiny-memory-time.yaml --set data.path=data/tiny-imagenet-40.tar
    """
    from flatout.commands.suite import print_suite, run_suite

    result = run_suite(file, assignments or [], runs, as_json)
    if as_json:
        print_json(result.to_dict())
    else:
        print_suite(result)
    result.raise_if_unfinished()
