"""The schema of steps.csv: each column once, with its type, and the reader of its rows."""

from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from flatout.errors import BadFile
from flatout.runs.tables import read_cells
from flatout.untrusted import MAX_NUMBER, shortened


class StepRow(NamedTuple):
    """One optimizer step. A column that the file does not have (an imported log, an older version) is its default.

    Files may have further columns; those are written for people and not read back."""

    attempt: int
    step: int
    """From 1, over all attempts."""
    epoch: int = 0
    batch_index: int = 0
    """Of the global batch in its epoch, from 0."""
    samples: int = 0
    """In the global batch."""
    samples_digest: str = ""
    """Of the global batch's sample ids."""
    loss: float | None = None
    """None where it was not read from the device; NaN and infinities where the run diverged."""
    learning_rate: float | None = None
    step_seconds: float | None = None
    """From asking for the batch to the end of the optimizer."""
    data_wait_seconds: float | None = None
    time_unix: float | None = None
    """When the step ended."""
    cpu_seconds: float | None = None
    """Of the training thread, after the data came."""

    @property
    def seconds(self) -> float:
        """`step_seconds`, 0 where the log does not say."""
        return self.step_seconds or 0.0

    @property
    def wait_seconds(self) -> float:
        """`data_wait_seconds`, 0 where the log does not say."""
        return self.data_wait_seconds or 0.0

    @property
    def own_seconds(self) -> float:
        """All of the step that is not waiting for data."""
        return self.seconds - self.wait_seconds


STEP_COLUMNS = StepRow._fields
_REQUIRED = ("attempt", "step")


def read_step_rows(path: Path) -> list[StepRow]:
    """Whole rows in file order, superseded ones included. A cell that is not of its column's type is a BadFile that
    names it. By column, since a run may have a million rows."""
    header, rows = read_cells(path)
    if not rows:
        return []
    for name in _REQUIRED:
        if name not in header:
            raise BadFile(f"cannot read {path}: it has no column {name}")
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    absent = {name: repeat(default) for name, default in StepRow._field_defaults.items()}
    columns = [_parse_column(cells[name], name, path) if name in cells else absent[name] for name in STEP_COLUMNS]
    return [StepRow(*values) for values in zip(*columns, strict=False)]  # absent columns never end


def _parse_column(cells: Sequence[str], name: str, path: Path) -> list[Any]:
    parse, default, required = _PARSERS[name], StepRow._field_defaults.get(name), name in _REQUIRED
    values = [parse(cell) if cell or required else default for cell in cells]
    if None in values:
        for place, cell in enumerate(cells, 1):
            if (cell or required) and parse(cell) is None:
                raise BadFile(f"cannot read {path}: {name} of row {place} is {shortened(cell)}, expected a number")
    return values


def parse_count(cell: str) -> int | None:
    """A whole number; None for anything else."""
    return int(cell) if cell.isdecimal() and len(cell) < 16 else None


def parse_amount(cell: str) -> float | None:
    """A finite number, not below 0; None for anything else."""
    value = parse_float(cell)
    return value if value is not None and 0 <= value <= MAX_NUMBER else None


def parse_float(cell: Any) -> float | None:
    """NaN and infinities too, which a diverged run has; None for what is no number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("attempt", "step", "epoch", "batch_index", "samples"), parse_count),
    "samples_digest": str,
    **dict.fromkeys(("loss", "learning_rate"), parse_float),
    **dict.fromkeys(("step_seconds", "data_wait_seconds", "time_unix", "cpu_seconds"), parse_amount),
}
