"""Notebooks: results that show themselves, training that is watched while it goes on. Elsewhere nothing happens."""

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flatout.runs import Run

_LOOK_SECONDS = 1.5


def shell() -> Any:
    """The IPython shell of a notebook's kernel; None in a script, a terminal, or where IPython is not loaded."""
    module = sys.modules.get("IPython")
    found = module.get_ipython() if module is not None else None
    return found if found is not None and hasattr(found, "kernel") else None


def html_of(result: Any) -> str:
    """A run, an explanation, a prediction or a comparison as a page in a frame."""
    from flatout.analysis.comparison import Comparison
    from flatout.analysis.details import read_details
    from flatout.diagnosis.verdict import Explanation
    from flatout.reports.html import report_page
    from flatout.reports.notebook import comparison_html, explanation_html, framed, prediction_html

    if isinstance(result, Explanation):
        return explanation_html(result)
    if isinstance(result, Comparison):
        return comparison_html(result)
    return framed(report_page(read_details(result))) if isinstance(result, Run) else prediction_html(result)


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
