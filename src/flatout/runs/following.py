"""Following files that grow: the steps of a run as curves of bounded size, the last lines of a text, a thinned table.

For pages that are looked at while a run goes on. Nothing here reads a byte twice, holds more than a few thousand
points, or writes."""

import csv
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.errors import BadFile
from flatout.runs.steps import parse_float
from flatout.runs.tables import read_table
from flatout.untrusted import require_regular

Floats = NDArray[np.float64]
CURVE_COLUMNS = ("loss", "learning_rate", "step_seconds", "data_wait_seconds")
_COLUMNS = ("step", "time_unix", "samples", *CURVE_COLUMNS, "attempt")
_STEP, _TIME, _SAMPLES = 0, 1, 2
_MOST_STRETCHES = 500  # two ends each: as many points as a chart shows
_CHUNK_BYTES = 1 << 18  # parsed at once: some 2,000 steps, a few milliseconds
_SKETCH_BYTES = 8 << 20  # a longer file is sampled first, so that it can be shown at once
_SKETCH_ROWS = 2048
_RECENT = 20
NO_STEPS: Floats = np.empty((0, len(_COLUMNS)))


class StretchedCurves:
    """Lowest and highest value of every column over stretches of equally many steps, which double in length whenever
    there are too many of them: a spike is never lost, and a million steps take as much room as a thousand."""

    def __init__(self) -> None:
        self.rows_per_stretch = 1
        self._ends: Floats = np.empty((0, 2))  # last step and time of every stretch
        self._low: Floats = np.empty((0, len(CURVE_COLUMNS)))
        self._high: Floats = np.empty((0, len(CURVE_COLUMNS)))
        self._rest: Floats = np.empty((0, len(_COLUMNS)))  # rows of the stretch that is not full yet

    def add(self, rows: Floats) -> None:
        """`rows` by ascending step; a first step that is not above the last one supersedes what was recorded from
        there on (a later attempt began again at a checkpoint)."""
        if len(rows):
            self._drop_from(rows[0, _STEP])
            waiting = np.concatenate([self._rest, rows])
            full = len(waiting) // self.rows_per_stretch * self.rows_per_stretch
            self._append(waiting[:full])
            self._rest = waiting[full:]
            while len(self._ends) > _MOST_STRETCHES:
                self._merge_pairs()

    def points(self, column: str) -> tuple[Floats, Floats, Floats, Floats]:
        """Last step, its time, lowest and highest value of every stretch; NaN where no value was read."""
        at = CURVE_COLUMNS.index(column)
        ends, low, high = self._ends, self._low[:, at], self._high[:, at]
        if len(self._rest):
            tail = self._rest[:, 3 + at]
            ends = np.concatenate([ends, self._rest[-1:, :2]])
            low, high = np.append(low, _least(tail[None])), np.append(high, _most(tail[None]))
        return ends[:, 0], ends[:, 1], low, high

    def _append(self, rows: Floats) -> None:
        stretches = rows.reshape(-1, self.rows_per_stretch, len(_COLUMNS))
        self._ends = np.concatenate([self._ends, stretches[:, -1, :2]])
        values = stretches[:, :, 3 : 3 + len(CURVE_COLUMNS)]
        self._low = np.concatenate([self._low, _least(values)])
        self._high = np.concatenate([self._high, _most(values)])

    def _merge_pairs(self) -> None:
        even = len(self._ends) // 2 * 2
        odd = slice(even, None)
        pair = (even // 2, 2)
        self.rows_per_stretch *= 2
        ends, low, high = self._ends, self._low, self._high
        self._ends = np.concatenate([ends[:even].reshape(*pair, 2)[:, -1], ends[odd]])
        self._low = np.concatenate([_least(low[:even].reshape(*pair, -1)), low[odd]])
        self._high = np.concatenate([_most(high[:even].reshape(*pair, -1)), high[odd]])

    def _drop_from(self, step: float) -> None:
        self._rest = self._rest[self._rest[:, _STEP] < step]
        kept = int(np.searchsorted(self._ends[:, 0], step))
        self._ends, self._low, self._high = self._ends[:kept], self._low[:kept], self._high[:kept]


def _least(values: Floats) -> Floats:
    """Over the second axis; NaN only where all are. Infinities are kept: a diverged run has them."""
    return np.asarray(np.fmin.reduce(values, axis=1), dtype=np.float64)


def _most(values: Floats) -> Floats:
    return np.asarray(np.fmax.reduce(values, axis=1), dtype=np.float64)


class StepFollower:
    """The steps of one run, read as they come. `advance` is called again and again; a long file is shown from a sample
    of its rows until all of it was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin(None)

    def _begin(self, identity: tuple[int, int] | None) -> None:
        self._identity = identity
        self._header: list[str] = []
        self._at = 0
        self._partial = b""
        self._recent = NO_STEPS
        self._exact = StretchedCurves()
        self._sketch: StretchedCurves | None = None

    @property
    def curves(self) -> StretchedCurves:
        return self._exact if self._sketch is None else self._sketch

    @property
    def is_sampled(self) -> bool:
        """Whether the curves are from a sample of the rows: the whole file was not read yet."""
        return self._sketch is not None

    def advance(self, most_bytes: int = 16 * _CHUNK_BYTES) -> bool:
        """Reads at most so many new bytes; True where something came. A file that was replaced is begun anew."""
        try:
            require_regular(self._path)
            with self._path.open("rb") as file:
                return self._read(file, most_bytes)
        except FileNotFoundError:
            self._begin(None)
            return False
        except OSError as error:
            raise BadFile(f"cannot read {self._path}: {error.strerror}") from None

    def recent(self) -> Floats:
        """The last steps: one row each, columns as `step, time_unix, samples, loss, …`."""
        return self._recent

    def _read(self, file: io.BufferedReader, most_bytes: int) -> bool:
        about = os.fstat(file.fileno())
        if self._identity != (about.st_dev, about.st_ino) or about.st_size < self._at:
            self._begin((about.st_dev, about.st_ino))
        if self._at == 0 and about.st_size > _SKETCH_BYTES:
            self._take_sketch(file, about.st_size)
        file.seek(self._at)
        end, came = self._at + most_bytes, False
        while self._at < end and (chunk := file.read(min(_CHUNK_BYTES, end - self._at))):
            self._at += len(chunk)
            came = self._parse(self._partial + chunk) or came
        if self._at >= about.st_size:
            self._sketch = None
        return came

    def _parse(self, data: bytes) -> bool:
        cut = data.rfind(b"\n") + 1
        self._partial = data[cut:] if len(data) - cut < _CHUNK_BYTES else b""  # no row is that long
        lines = data[:cut]
        if not self._header and lines:
            head, _, lines = lines.partition(b"\n")
            self._header = _cells(head)
        for rows in _attempts(_numbers(lines, self._header)):
            self._exact.add(rows)
            if self._sketch is None or rows[-1, _STEP] > self._last_step():
                self._recent = np.concatenate([self._recent[self._recent[:, _STEP] < rows[0, _STEP]], rows])[-_RECENT:]
        return bool(lines)

    def _last_step(self) -> float:
        return float(self._recent[-1, _STEP]) if len(self._recent) else 0.0

    def _take_sketch(self, file: io.BufferedReader, size: int) -> None:
        """Evenly spaced rows and the last ones, so that a long run can be shown before it was read."""
        header, lines = _spaced_lines(file, size, _SKETCH_ROWS)
        rows = _numbers(lines, header)
        self._sketch = StretchedCurves()
        for part in _attempts(rows):
            self._sketch.add(part)
        self._recent = rows[-_RECENT:]


def _spaced_lines(file: io.BufferedReader, size: int, count: int) -> tuple[list[str], bytes]:
    """The header of a long table, and so many of its lines at equal distances with all of the last ones."""
    header, pieces = _cells(file.readline(_CHUNK_BYTES)), []
    for at in np.linspace(file.tell(), size - _CHUNK_BYTES, count).astype(int):
        file.seek(at)
        file.readline(_CHUNK_BYTES)  # from the middle of a row
        pieces.append(file.readline(_CHUNK_BYTES))
    file.seek(size - _CHUNK_BYTES)
    file.readline(_CHUNK_BYTES)
    tail = file.read(_CHUNK_BYTES)
    return header, b"".join(pieces) + tail[: tail.rfind(b"\n") + 1]


def _cells(line: bytes) -> list[str]:
    with suppress(csv.Error):  # a cell without end names no column
        return next(csv.reader([line.decode("utf-8", "replace").rstrip("\r\n")]), [])
    return []


def _numbers(lines: bytes, header: Sequence[str]) -> Floats:
    """The columns of `_COLUMNS`, NaN for blanks; rows that are damaged are left out."""
    if not lines or "step" not in header:
        return NO_STEPS
    text = lines.decode("utf-8", "replace")
    places = [header.index(name) if name in header else None for name in _COLUMNS]
    found: list[list[float]] = []
    with suppress(csv.Error):  # a cell without end: the rows before it count
        found += (
            [float("nan") if at is None else _number(row[at]) for at in places]
            for row in csv.reader(text.splitlines())
            if len(row) == len(header)
        )
    rows = np.array(found, dtype=np.float64).reshape(-1, len(_COLUMNS))
    return rows[np.isfinite(rows[:, _STEP])]


def _number(cell: str) -> float:
    """NaN for a blank; a loss that was read and is NaN is infinite here."""
    value = parse_float(cell) if cell else None
    return np.nan if value is None else np.inf if value != value else value


def _attempts(rows: Floats) -> list[Floats]:
    """Stretches of ascending steps: another attempt begins again."""
    breaks = np.flatnonzero(np.diff(rows[:, _STEP]) <= 0) + 1
    return [part for part in np.split(rows, breaks) if len(part)]


def read_tail(path: Path, most_bytes: int = 1 << 14) -> str:
    """The last whole lines of a text; empty where there is no file."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most_bytes))
            data = file.read(most_bytes)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    cut = data.find(b"\n") + 1 if size > most_bytes else 0
    return data[cut:].decode("utf-8", "replace")


def read_recent(path: Path) -> Floats:
    """The last steps, as `StepFollower.recent`, from the end of the file alone."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            header = _cells(file.readline(_CHUNK_BYTES))
    except FileNotFoundError:
        return NO_STEPS
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    attempts = _attempts(_numbers(read_tail(path).encode("utf-8", "replace"), header))
    return attempts[-1][-_RECENT:] if attempts else NO_STEPS


def read_thinned(path: Path, most_rows: int = 2000) -> list[dict[str, str]]:
    """Rows of a table at equal distances, with the last one: enough to draw. Of a long file only those are read."""
    try:
        size = path.stat().st_size
        if size > _SKETCH_BYTES:
            require_regular(path)
            with path.open("rb") as file:
                header, lines = _spaced_lines(file, size, most_rows)
            found = csv.reader(lines.decode("utf-8", "replace").splitlines())
            return [dict(zip(header, row, strict=True)) for row in found if len(row) == len(header)]
    except FileNotFoundError:
        return []
    except (OSError, csv.Error) as error:
        raise BadFile(f"cannot read {path}: {error}") from None
    rows = read_table(path)
    stride = -(-len(rows) // most_rows) or 1
    return rows[len(rows) - 1 :: -stride][::-1] if rows else []
