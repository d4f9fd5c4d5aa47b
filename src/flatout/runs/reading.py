"""Reading runs, finished, running or dead. Needs no torch, so any run can be looked at on any laptop."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flatout.errors import RunDirectoryError, UserError
from flatout.runs.directory import RunDirectory, effective_rows, read_json, read_table, write_json
from flatout.runs.rebuilding import rebuild_summary
from flatout.runs.shapes import ENVIRONMENT, check_config, check_rows, checked_summary
from flatout.untrusted import blamed_as, check_shape, read_yaml


@dataclass(frozen=True)
class Run:
    """A run as its files tell it."""

    directory: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    steps: list[dict[str, str]]
    epochs: list[dict[str, str]]

    @classmethod
    def elsewhere(cls, directory: Path) -> "Run":
        """On a rank besides rank 0, which may not even see the files."""
        return cls(directory, {}, {}, {}, [], [])

    @cached_property
    def system(self) -> list[dict[str, str]]:
        """Rows of system.csv, of all attempts; read when first asked for."""
        return read_table(RunDirectory(self.directory).system)

    @property
    def name(self) -> str:
        return str(self.summary.get("run", self.directory.name))

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "failed"))


def read_run(path: Path | str) -> Run:
    """Read one run directory; a run that says it is running but has no process is marked as failed."""
    directory = RunDirectory(Path(path))
    if not directory.exists:
        raise RunDirectoryError(f"no run in {path}; `flatout runs` lists those under runs/")
    with blamed_as(RunDirectoryError):
        return _read(directory)


def _read(directory: RunDirectory) -> Run:
    config = read_yaml(directory.config)
    if not isinstance(config, dict):
        raise RunDirectoryError(f"cannot read {directory.config}: it holds no keys")
    check_config(config, directory.config)
    environment = read_json(directory.environment)
    check_shape(environment, ENVIRONMENT, directory.environment)
    steps, epochs = read_table(directory.steps), read_table(directory.epochs)
    check_rows(steps, directory.steps, ("attempt", "step"))
    check_rows(epochs, directory.epochs, ("attempt", "epoch"))
    for row in steps:
        row["epoch"] = row.get("epoch") or "0"  # a log of another program may not say it
    summary = _final_summary(directory, config)
    return Run(
        directory.root, summary, config, environment, effective_rows(steps, "step"), effective_rows(epochs, "epoch")
    )


def list_runs(folder: Path) -> list[Run]:
    """Every run directly under a folder, by name."""
    if not folder.is_dir():
        return []
    return [_read_or_say(child) for child in sorted(folder.iterdir()) if RunDirectory(child).exists]


def _read_or_say(path: Path) -> Run:
    """A run whose files are damaged is a row with its cause, not the end of the list."""
    try:
        return read_run(path)
    except UserError as error:
        return Run(path, {"run": path.name, "status": "failed", "cause": str(error)}, {}, {}, [], [])


def _final_summary(directory: RunDirectory, config: dict[str, Any]) -> dict[str, Any]:
    summary = checked_summary(read_json(directory.summary), directory.summary)
    if summary.get("status", "running") != "running":
        return summary
    if directory.in_use():
        return {"run": directory.root.name, "status": "running", **summary}
    summary = rebuild_summary(directory, summary, config)
    with suppress(OSError):  # a read-only copy is still readable
        write_json(directory.summary, summary)
    return summary
