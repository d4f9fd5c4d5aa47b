"""CSV files of a run: growing by whole rows while it goes on, and read back whatever became of it."""

import csv
import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, AnyStr, TypeVar

from flatout.errors import BadFile
from flatout.runs.directory import write_text
from flatout.untrusted import MAX_TABLE_BYTES, read_lines, read_text

EPOCH_COLUMNS = ("attempt", "epoch", "step", "samples", "train_loss", "learning_rate", "time_unix")
"""The first columns of every epochs.csv; those of its metrics follow. Those of steps.csv are in steps.py."""
QUARANTINE_COLUMNS = ("split", "sample_id", "name", "reason")
_Row = TypeVar("_Row")


class Table:
    """A CSV file that grows by whole rows. A row cut short by a kill is dropped when the file is opened again."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path = path
        self._columns = list(columns)
        self._file: io.FileIO | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Handed to the kernel at once: a kill -9 after this loses nothing. On a full disk, whole or not at all."""
        if self._file is None:
            self._open(row)
        if new := [name for name in row if name not in self._columns]:
            self._widen(new)
        self._write([cell(row.get(name)) for name in self._columns])

    def follow(self, path: Path) -> None:
        """To be found at `path` from now on. Rows of a file that was deleted while it was open are still to be read."""
        if self._file is not None and not path.exists():
            kept = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0)
            path.write_bytes(kept)
        self.close()
        self._path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, row: Mapping[str, Any]) -> None:
        _drop_torn_tail(self._path)
        if self._path.exists() and self._path.stat().st_size:
            with self._path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
                self._columns = self._read_header(file)
            self._file = self._path.open("ab+", buffering=0)
            return
        self._columns += [name for name in row if name not in self._columns]
        self._file = self._path.open("ab+", buffering=0)
        self._write(self._columns)

    def _read_header(self, file: Iterable[str]) -> list[str]:
        try:
            return next(csv.reader(file))
        except csv.Error as error:
            raise BadFile(f"cannot read {self._path}: {error}") from None

    def _widen(self, new: list[str]) -> None:
        """A column that only later rows have: the first epoch need not be one that is validated."""
        self.close()
        rows = read_table(self._path)
        self._columns += new
        text = io.StringIO(newline="")
        csv.writer(text).writerows([self._columns, *([row.get(name, "") for name in self._columns] for row in rows)])
        write_text(self._path, text.getvalue())
        self._file = self._path.open("ab+", buffering=0)

    def _write(self, cells: list[Any]) -> None:
        assert self._file is not None
        text = io.StringIO(newline="")
        csv.writer(text).writerow(cells)
        data = text.getvalue().encode("utf-8", "surrogateescape")
        whole = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        except OSError:
            self._file.truncate(whole)
            if not whole:  # not even the header fits: a later row must try that again
                self.close()
            raise


def read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and all whole rows. A torn last row is left out, and so is one that is not as long as the header."""
    try:
        text = read_text(path, MAX_TABLE_BYTES, "surrogateescape", newline="")
        # lines as csv sees them: splitlines() would also cut at the form feeds and U+2028 that file names may hold
        rows = csv.reader(io.StringIO(text[: _whole_length(text, "\n", '"')], newline=""))
        header = next(rows, [])
        return header, [row for row in rows if len(row) == len(header)]
    except FileNotFoundError:
        return [], []
    except csv.Error as error:
        raise BadFile(f"cannot read {path}: {error}") from None


def read_table(path: Path) -> list[dict[str, str]]:
    """All whole rows by the names of their columns, as csv.DictReader gives them."""
    header, rows = read_cells(path)
    return [dict(zip(header, row, strict=True)) for row in rows]


def read_columns(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """These cells (two at least) of every whole row, one row at a time: for a table too long to hold. Its cells hold
    no line breaks."""
    rows = csv.reader(line for line in read_lines(path) if line.endswith("\n"))
    try:
        header = next(rows, None)
        if header is not None:
            pick = itemgetter(*(header.index(name) for name in names))
            yield from (pick(row) for row in rows if len(row) == len(header))
    except (csv.Error, ValueError) as error:
        raise BadFile(f"cannot read {path}: {error}") from None


def _drop_torn_tail(path: Path) -> None:
    with suppress(FileNotFoundError), path.open("rb+") as file:
        data = file.read()
        file.truncate(_whole_length(data, b"\n", b'"'))


def _whole_length(data: AnyStr, newline: AnyStr, quote: AnyStr) -> int:
    """Where the last whole row ends. A newline inside quotes belongs to a file's name and ends no row."""
    end = data.rfind(newline) + 1
    while data.count(quote, 0, end) % 2:
        end = data.rfind(newline, 0, end - 1) + 1
    return end


def cell(value: Any) -> str:
    """A value as a table holds it."""
    if isinstance(value, float):
        return repr(value)
    return "" if value is None else str(value)


def effective_rows(rows: Iterable[dict[str, str]], key: str) -> list[dict[str, str]]:
    """Rows that count, by the number in column `key`."""
    return without_superseded(rows, lambda row: (int(row["attempt"]), int(row[key])))


def without_superseded(rows: Iterable[_Row], place: Callable[[_Row], tuple[int, int]]) -> list[_Row]:
    """Rows that count: when a later attempt starts again at a step, what was recorded from there on is superseded.
    `place` tells the attempt and the number (of a step or an epoch) of a row."""
    kept: dict[int, _Row] = {}
    attempt = None
    for row in rows:
        of, number = place(row)
        if of != attempt:
            attempt = of
            kept = {at: old for at, old in kept.items() if at < number}
        kept[number] = row
    return [kept[number] for number in sorted(kept)]
