"""Reading runs, finished, running or killed. Writes nothing, and needs no torch: any run can be read on any laptop."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flatout.cost.killed_run import price_killed_run
from flatout.errors import BadFile, RunDirectoryError, UserError
from flatout.html_view import html_of
from flatout.runs.directory import RunDirectory, read_json
from flatout.runs.rebuilding import rebuild_summary
from flatout.runs.schema import ENVIRONMENT, check_config, check_epochs, checked_link, checked_summary
from flatout.runs.steps import StepRow, parse_count, read_step_rows
from flatout.runs.tables import effective_rows, read_table, without_superseded
from flatout.untrusted import blamed_as, check_shape, read_yaml, shortened


@dataclass(frozen=True)
class Run:
    """A run as its files tell it."""

    directory: Path
    summary: dict[str, Any]
    """summary.json (DESIGN section 6); of a killed run, summed up and priced from its other files."""
    config: dict[str, Any]
    environment: dict[str, Any]
    steps: list[StepRow]
    """Those that count: without what a later attempt did again."""
    epochs: list[dict[str, str]]
    """Rows of epochs.csv that count; each metric has a column."""
    _repr_html_ = html_of

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
    """Read one run directory. A run that says it is running but has no process was killed: it is given as failed."""
    directory = RunDirectory(Path(path))
    if not directory.exists:
        raise RunDirectoryError(f"no run in {path}; `flatout runs` lists those under runs/")
    with blamed_as(RunDirectoryError):
        return _read(directory)


def _read(directory: RunDirectory) -> Run:
    directory.require_own_files()
    config = read_yaml(directory.config)
    if not isinstance(config, dict):
        raise RunDirectoryError(f"cannot read {directory.config}: it holds no keys")
    check_config(config, directory.config)
    environment = read_json(directory.environment)
    check_shape(environment, ENVIRONMENT, directory.environment)
    steps = without_superseded(read_step_rows(directory.steps), lambda row: (row.attempt, row.step))
    epochs = read_epochs(directory)
    summary = checked_summary(read_json(directory.summary), directory.summary)
    if summary.get("status", "running") == "running":
        if directory.in_use():
            summary = {"run": directory.root.name, "status": "running", **summary}
        else:
            summary = rebuild_summary(directory, summary, config, steps, epochs)
    return Run(directory.root, price_killed_run(summary, config), config, environment, steps, epochs)


def read_summary(directory: RunDirectory) -> dict[str, Any]:
    """summary.json as it stands; without keys before the first one is written. RunDirectoryError where it is damaged,
    or the directory holds files that are not its own."""
    directory.require_own_files()
    with blamed_as(RunDirectoryError):
        return checked_summary(read_json(directory.summary), directory.summary)


def read_epochs(directory: RunDirectory) -> list[dict[str, str]]:
    """Rows of epochs.csv that count; a damaged table is a BadFile that names the cell."""
    rows = read_table(directory.epochs)
    check_epochs(rows, directory.epochs)
    return effective_rows(rows, "epoch")


def read_link(directory: RunDirectory) -> dict[str, Any]:
    """What was measured between the ranks; empty for one rank. RunDirectoryError where the file is damaged."""
    with blamed_as(RunDirectoryError):
        return checked_link(read_json(directory.link), directory.link)


def read_quarantine(directory: RunDirectory) -> set[tuple[str, int]]:
    """Split and number of every sample in quarantine.csv; a damaged table is a BadFile that names the cell."""
    found = set()
    for place, row in enumerate(read_table(directory.quarantine), 1):
        split, sample_id = row.get("split"), parse_count(row.get("sample_id", ""))
        if split is None or sample_id is None:
            raise BadFile(
                f"cannot read {directory.quarantine}: row {place} is {shortened(row)}, expected a split and a number "
                "as sample_id; remove the file to have it written anew"
            )
        found.add((split, sample_id))
    return found


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
