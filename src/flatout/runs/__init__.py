"""Run directories: writing, reading, listing. Never imports torch."""

from flatout.runs.directory import RunDirectory
from flatout.runs.reading import Run, list_runs, read_run

__all__ = ["Run", "RunDirectory", "list_runs", "read_run"]
