"""Reading runs, finished, running or dead. Needs no torch, so any run can be looked at on any laptop."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flatout.errors import RunDirectoryError
from flatout.runs.directory import RunDirectory, effective_rows, read_json, read_table, write_json
from flatout.runs.rebuilding import rebuild_summary


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
    try:
        config = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunDirectoryError(f"cannot read {directory.config}: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise RunDirectoryError(f"cannot read {directory.config}: it holds no keys")
    try:
        return Run(
            directory.root,
            _final_summary(directory, config),
            config,
            read_json(directory.environment),
            effective_rows(read_table(directory.steps), "step"),
            effective_rows(read_table(directory.epochs), "epoch"),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:  # a table without its columns or numbers
        raise RunDirectoryError(f"the records in {path} are damaged: {type(error).__name__}: {error}") from None


def list_runs(folder: Path) -> list[Run]:
    """Every run directly under a folder, by name."""
    if not folder.is_dir():
        return []
    return [_read_or_say(child) for child in sorted(folder.iterdir()) if RunDirectory(child).exists]


def _read_or_say(path: Path) -> Run:
    """A run whose files are damaged is a row with its cause, not the end of the list."""
    try:
        return read_run(path)
    except RunDirectoryError as error:
        return Run(path, {"run": path.name, "status": "failed", "cause": str(error)}, {}, {}, [], [])


def _final_summary(directory: RunDirectory, config: dict[str, Any]) -> dict[str, Any]:
    summary = read_json(directory.summary)
    if summary.get("status", "running") != "running":
        return summary
    if directory.in_use():
        return {"run": directory.root.name, "status": "running", **summary}
    summary = rebuild_summary(directory, summary, config)
    with suppress(OSError):  # a read-only copy is still readable
        write_json(directory.summary, summary)
    return summary
