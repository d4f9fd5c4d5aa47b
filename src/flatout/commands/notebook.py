"""Notebooks: results that show themselves, training that is watched while it goes on. Elsewhere nothing happens."""

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_LOOK_SECONDS = 1.5


def shell() -> Any:
    """The IPython shell of a notebook's kernel; None in a script, a terminal, or where IPython is not loaded."""
    module = sys.modules.get("IPython")
    found = module.get_ipython() if module is not None else None
    return found if found is not None and hasattr(found, "kernel") else None


def show_results() -> None:
    """Runs, explanations and comparisons are pages when they are the value of a cell."""
    notebook = shell()
    if notebook is None:
        return
    formatter = notebook.display_formatter.formatters["text/html"]
    formatter.for_type_by_name("flatout.runs.reading", "Run", _run_html)
    formatter.for_type_by_name("flatout.diagnosis.verdict", "Explanation", _explanation_html)
    formatter.for_type_by_name("flatout.analysis.comparison", "Comparison", _comparison_html)


@contextmanager
def watched(directory: Path) -> Iterator[None]:
    """Shows the run in this cell while it trains, from its files, in a thread of its own."""
    if shell() is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(directory, ended), name="notebook", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(directory: Path, ended: threading.Event) -> None:
    from flatout.commands.dashboard import Board
    from flatout.commands.dashboard_run import WatchedRuns

    show: Any = importlib.import_module("IPython.display")
    runs, handle = WatchedRuns(Board([directory])), None
    while True:
        over = ended.wait(0 if handle is None else _LOOK_SECONDS)
        with suppress(Exception):  # a picture must not end training
            text = runs.small_view("0/.")
            if handle is None:
                handle = show.display(show.HTML(text), display_id=True)
            else:
                handle.update(show.HTML(text))
        if over:
            return
        if handle is None:
            time.sleep(0.2)


def _run_html(run: Any) -> str:
    from flatout.analysis.details import read_details
    from flatout.reports.html import report_page
    from flatout.reports.notebook import framed

    return framed(report_page(read_details(run)))


def _explanation_html(explanation: Any) -> str:
    from flatout.reports.notebook import explanation_html

    return explanation_html(explanation)


def _comparison_html(found: Any) -> str:
    from flatout.reports.notebook import comparison_html

    return comparison_html(found)
