"""Makes a run directory of a log that another program wrote, so that reports and comparisons work on it. No torch."""

import re
from contextlib import ExitStack
from pathlib import Path

import yaml

from flatout.errors import RunDirectoryError
from flatout.runs import Run, RunDirectory, read_run
from flatout.runs.directory import write_json, write_text
from flatout.runs.foreign import read_foreign, summary_of
from flatout.runs.steps import STEP_COLUMNS
from flatout.runs.summary import accuracy
from flatout.runs.tables import EPOCH_COLUMNS, Table, read_table

_COMMON_NAMES = ("metrics", "summary", "log")


def import_run(source: Path, run: Path | None = None) -> Run:
    """Read a CSV log or TensorBoard events into a new run directory (default runs/<name of the log>)."""
    log = read_foreign(source)
    directory = RunDirectory(run if run is not None else Path("runs") / default_name(source))
    if directory.exists:
        raise RunDirectoryError(f"{directory.root} holds a run already; choose another --run DIR")
    with ExitStack() as stack:
        directory.lock()
        stack.callback(directory.unlock)
        for path, columns, rows in (
            (directory.steps, STEP_COLUMNS, log.steps),
            (directory.epochs, EPOCH_COLUMNS, log.epochs),
        ):
            table = Table(path, columns)
            stack.callback(table.close)
            for row in rows:
                table.append({"attempt": 1, **row})
        name = directory.root.name
        by, higher = ("top1", True) if "top1" in log.columns else ("val_loss", False)
        summary = summary_of(log, name, str(source.absolute()), accuracy(read_table(directory.epochs), by, higher))
        write_json(directory.summary, summary)
        write_text(directory.config, yaml.safe_dump({"name": name}))  # last: with it the directory is a run
    return read_run(directory.root)


def default_name(source: Path) -> str:
    """`version_0` for version_0/metrics.csv, `resnet50` for resnet50.csv, a folder's own name."""
    path = source.absolute()
    from_folder = path.is_dir() or path.stem in _COMMON_NAMES or "tfevents" in path.name
    name = path.name if path.is_dir() else path.parent.name if from_folder else path.stem
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "imported"
