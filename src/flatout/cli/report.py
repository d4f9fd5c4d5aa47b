from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, RunPath, app, print_json


@app.command()
def report(
    run: RunPath,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the page to FILE instead of RUN/report.html.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for pasting.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Write RUN/trace.json, which opens in Perfetto.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run, finished or not: what came of it, where the time went, what it cost; and write it as one page.

    The page is a single file that opens without a network: send it to anybody. Needs the run directory alone, so copied
    runs can be reported on any machine.

    Examples:

      flatout report runs/demo

      flatout report runs/demo --html demo.html --trace

      flatout report runs/demo --markdown > notes.md
    """
    from flatout.commands.report import report_run

    result = report_run(run, html, markdown, trace, quiet=as_json)
    if as_json:
        print_json(result)
