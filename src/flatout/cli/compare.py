from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, draw, print_json


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, copied from anywhere.")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="PATH", help="Write a page with charts as well.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Put runs side by side, differences first; the first is what the others are compared with.

    Says at the top what may not be compared: other data, an emulated device, another task, a run that did not end.

    Example:  flatout compare runs/baseline runs/more-workers --html compare.html
    """
    from flatout.commands.compare import compare_runs, render_comparison

    found = compare_runs(runs, html)
    if as_json:
        print_json(found.to_dict())
        return
    draw(render_comparison(found))
    if html is not None:
        from rich.text import Text

        draw(Text(f"\n{html}", style="dim"))
