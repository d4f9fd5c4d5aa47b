"""Reading runs, finished, running or dead. Needs no torch, so any run can be looked at on any laptop."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flatout.errors import RunDirectoryError
from flatout.runs.directory import RunDirectory, effective_rows, read_json, read_table, write_json


@dataclass(frozen=True)
class Run:
    """A run as its files tell it."""

    directory: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    steps: list[dict[str, str]]
    epochs: list[dict[str, str]]

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
    with directory.config.open(encoding="utf-8") as file:
        config = yaml.safe_load(file)
    return Run(
        directory.root,
        _final_summary(directory),
        config,
        read_json(directory.environment),
        effective_rows(read_table(directory.steps), "step"),
        effective_rows(read_table(directory.epochs), "epoch"),
    )


def list_runs(folder: Path) -> list[Run]:
    """Every run directly under a folder, by name."""
    if not folder.is_dir():
        return []
    return [read_run(child) for child in sorted(folder.iterdir()) if RunDirectory(child).exists]


def _final_summary(directory: RunDirectory) -> dict[str, Any]:
    summary = read_json(directory.summary)
    if summary.get("status", "running") != "running" or directory.in_use():
        return summary
    summary = {
        **summary,
        "run": summary.get("run", directory.root.name),
        "status": "failed",
        "cause": "the process ended without a word (killed, out of memory, or the machine went down); "
        "the same train command resumes from the newest checkpoint",
    }
    try:
        write_json(directory.summary, summary)
    except OSError:
        pass  # a read-only copy is still readable
    return summary
