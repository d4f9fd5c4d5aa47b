"""Report on a run directory: on the terminal, as a page, as Markdown, as a trace. Needs no torch."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from flatout.analysis.answers import answers
from flatout.analysis.details import Details, read_details
from flatout.analysis.trace import write_trace
from flatout.errors import RunDirectoryError
from flatout.reports.html import report_page
from flatout.reports.markdown import report_markdown
from flatout.reports.terminal import render
from flatout.runs import Run, read_run
from flatout.runs.directory import write_text

_TRACE_STEPS = 20_000  # a longer run's trace is large; it is written where it is asked for


def report_run(run: Run | str | Path, html: Path | None, markdown: bool, trace: bool, quiet: bool) -> dict[str, Any]:
    """Writes what was asked for, prints unless `quiet`; returns the summary with answers and the files written."""
    details = read_details(run if isinstance(run, Run) else read_run(run))
    written = _write_files(details, html, trace)
    if markdown and not quiet:
        sys.stdout.write(report_markdown(details))
    elif not quiet:
        Console(highlight=False).print(render(details, written))
    told = {each.question: each.answer for each in answers(details)}
    accounts = [vars(account) for account in details.accounts]
    found = {**details.run.summary, "convergence": details.convergence}
    return {**found, "answers": told, "epochs": accounts, "written": written}


def print_report(run: Run) -> None:
    """What a person sees at the end of training; the page and, for all but the longest runs, the trace are written."""
    report_run(run, None, markdown=False, trace=len(run.steps) <= _TRACE_STEPS, quiet=False)


def _write_files(details: Details, html: Path | None, trace: bool) -> dict[str, str]:
    """What each file is and where it went, or why it could not be written: that ends the command only where the user
    named the file."""
    folder = details.run.directory
    targets: dict[str, tuple[Path, Callable[[Path], Any]]] = {
        "page": (html or folder / "report.html", lambda path: write_text(path, report_page(details)))
    }
    if trace:
        targets["trace"] = (folder / "trace.json", lambda path: write_trace(details.run, path))
    written = {}
    for name, (path, write) in targets.items():
        try:
            write(path)
            written[name] = str(path)
        except OSError as error:
            if path == html:
                raise RunDirectoryError(f"cannot write {path}: {error.strerror}; choose another --html FILE") from None
            written[name] = f"n/a ({path}: {error.strerror}; use --html FILE)"
    return written
