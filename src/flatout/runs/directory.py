"""A run's directory: which file is what, who may write to it, and writing that never leaves half a file."""

import csv
import errno
import fcntl
import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, AnyStr, Literal

from flatout import untrusted
from flatout.errors import BadFile, RunDirectoryError
from flatout.untrusted import MAX_TABLE_BYTES, blamed_as, read_lines, read_text

STEP_COLUMNS = (
    "attempt", "step", "epoch", "batch_index", "samples", "samples_digest", "loss", "learning_rate", "step_seconds",
    "data_wait_seconds", "time_unix", "cpu_seconds",
)  # fmt: skip
EPOCH_COLUMNS = ("attempt", "epoch", "step", "samples", "train_loss", "learning_rate", "time_unix")
QUARANTINE_COLUMNS = ("split", "sample_id", "name", "reason")

Fate = Literal["here", "deleted", "moved", "replaced"]
"""Of a run directory in mid-run. Emptied is deleted; replaced: another directory or another process has its name."""

CLASSES_FILE = "classes.json"
"""The names of the classes in the order of their labels; not there where labels are not classes."""


class RunDirectory:
    """Paths of one run, and the lock that keeps a second process out."""

    def __init__(self, root: Path) -> None:
        self._lock: int | None = None
        self._home: int | None = None  # the directory itself, open: its number is not given to another one meanwhile
        self._made: list[Path] = []  # folders that were not there before
        self._settle(root)

    def _settle(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"
        self.environment = root / "env.json"
        self.resolved = root / "resolved.json"  # what was decided for this run, with the reasons
        self.steps = root / "steps.csv"
        self.epochs = root / "epochs.csv"
        self.system = root / "system.csv"
        self.other_gpus = root / "system-ranks.csv"  # those of the other ranks
        self.quarantine = root / "quarantine.csv"
        self.classes = root / CLASSES_FILE
        self.summary = root / "summary.json"
        self.cost = root / "cost.json"
        self.log = root / "log.txt"
        self.spans = root / "spans"
        self.checkpoints = root / "checkpoints"
        self._lock_path = root / "lock"

    @property
    def exists(self) -> bool:
        return self.config.exists()

    def lock(self) -> None:
        """Hold the run until this process ends; the kernel lets go of it even after a kill -9."""
        try:
            self._made = [folder for folder in (self.root, *self.root.parents) if not folder.exists()]
            while self._lock is None:
                self.root.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # a command that was refused removed the directory just now
                    self._lock = _locked(self._lock_path)
            self._home = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._remove_made()
            raise RunDirectoryError(
                f"{self.root} cannot be written to: {error.strerror}; choose another --run DIR"
            ) from None
        os.ftruncate(self._lock, 0)
        with suppress(OSError):  # on a full disk the lock holds without its owner's number
            os.write(self._lock, b"%d\n" % os.getpid())

    def unlock(self) -> None:
        """Let go. A directory that got nothing but the lock is removed again: a refused command leaves no trace."""
        if self._lock is None:
            return
        with suppress(OSError):
            if os.listdir(self.root) == [self._lock_path.name]:
                self._lock_path.unlink()
                self._remove_made()
        self._let_go()

    def _let_go(self) -> None:
        for fd in (self._lock, self._home):
            if fd is not None:
                os.close(fd)
        self._lock = self._home = None

    def fate(self) -> Fate:
        """What became of the directory since it was locked."""
        if self._lock is None or self._home is None or _same(self._lock, self._lock_path):
            return "here"
        if self._lock_path.exists():
            return "replaced"
        if _same(self._home, self.root):
            return "here" if self.config.exists() else "deleted"
        if self.config.exists() or (self.root.exists() and not self.root.is_dir()):
            return "replaced"
        return "deleted" if self._moved_to() is None else "moved"

    def find_again(self) -> None:
        """After a fate: the same place, where it was deleted; where it is now; or a new place beside the other one."""
        fate, moved_to = self.fate(), self._moved_to()
        if fate == "moved" and moved_to is not None:
            self._settle(moved_to)
            return
        self._let_go()
        if fate == "replaced":
            self._settle(self.root.with_name(f"{self.root.name}-kept-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"))
        self.lock()

    def _moved_to(self) -> Path | None:
        """Where the open directory is now; None where it is nowhere any more, or the system does not say."""
        with suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{self._home}"))
            if self._home is not None and _same(self._home, path):
                return path
        return None

    def _remove_made(self) -> None:
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def in_use(self) -> bool:
        """Whether a process holds the lock now."""
        try:
            fd = os.open(self._lock_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(fd)
            return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def set_aside(self) -> Path:
        """Move what is here out of the way, losing nothing; returns where it went."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for number in range(1000):
            target = self.root.with_name(f"{self.root.name}-before-{stamp}" + (f"-{number}" if number else ""))
            if not target.exists():
                try:
                    os.replace(self.root, target)
                except OSError as error:  # a mount point, or a folder beside it that may not be written to
                    raise RunDirectoryError(
                        f"cannot move {self.root} aside: {error.strerror}; choose another --run DIR"
                    ) from None
                return target
        raise RunDirectoryError(f"cannot move {self.root} aside: too many older copies beside it")


def _same(fd: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.stat(path))
    return False


def _locked(path: Path) -> int | None:
    """An open, locked file, or None where its owner removed it meanwhile. Refused while another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except BlockingIOError:
        owner = os.read(fd, 32).decode().strip() or "unknown"
        os.close(fd)
        raise RunDirectoryError(
            f"{path.parent} is in use by process {owner}; wait for it, stop it, or choose another --run DIR"
        ) from None
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


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
                self._columns = next(csv.reader(file))
            self._file = self._path.open("ab+", buffering=0)
            return
        self._columns += [name for name in row if name not in self._columns]
        self._file = self._path.open("ab+", buffering=0)
        self._write(self._columns)

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


def read_table(path: Path) -> list[dict[str, str]]:
    """All whole rows; a torn last row is left out."""
    try:
        text = read_text(path, MAX_TABLE_BYTES, "surrogateescape", newline="")
        # lines as csv sees them: splitlines() would also cut at the form feeds and U+2028 that file names may hold
        return list(_rows(csv.reader(io.StringIO(text[: _whole_length(text, "\n", '"')], newline=""))))
    except FileNotFoundError:
        return []
    except csv.Error as error:
        raise BadFile(f"cannot read {path}: {error}") from None


def _rows(rows: Iterator[list[str]]) -> Iterator[dict[str, str]]:
    """As csv.DictReader, of rows that are as long as the header: a longer or shorter one is left out."""
    header = next(rows, [])
    return (dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header))


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


def write_text(path: Path, text: str) -> None:
    """The whole new text or the whole old one, never a mixture."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, values: Mapping[str, Any] | list[Any]) -> None:
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def add_decisions(path: Path, attempt: int, decided: Mapping[str, Any]) -> None:
    """Into resolved.json: those of this attempt at the top, where readers look; those of attempts before it follow."""
    known: dict[str, Any] = {}
    with suppress(RunDirectoryError):  # a damaged file holds nothing that could be kept
        known = read_json(path)
    earlier = known.pop("earlier", [])
    earlier = [*earlier, *([known] if known else [])] if isinstance(earlier, list) else []
    write_json(path, {"attempt": attempt, **decided, **({"earlier": earlier} if earlier else {})})


def mark_ended(directory: RunDirectory, status: str, cause: str) -> None:
    """For whoever is left when the summary cannot be written as usual; what is final stays."""
    summary = read_json(directory.summary)
    if summary.get("status") != "running":
        return
    ended = {**summary, "status": status, "cause": cause}
    try:
        write_json(directory.summary, ended)
    except OSError:  # a full disk: without its indentation the text fits where the old one is
        _overwrite(directory.summary, json.dumps(ended))


def mark_failed(directory: RunDirectory, cause: str) -> None:
    mark_ended(directory, "failed", cause)


def _overwrite(path: Path, text: str) -> None:
    """In place, without a new block of the disk. Only where `write_text` cannot be had: a kill leaves half a file."""
    data = text.encode("utf-8", "surrogateescape")
    with path.open("r+b") as file:
        room = os.fstat(file.fileno()).st_size
        if len(data) < room:
            file.write(data.ljust(room - 1) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_json(path: Path) -> dict[str, Any]:
    try:
        with blamed_as(RunDirectoryError):
            values = untrusted.read_json(path)
    except FileNotFoundError:
        return {}
    return values if isinstance(values, dict) else {}


def effective_rows(rows: Iterable[dict[str, str]], key: str) -> list[dict[str, str]]:
    """Rows that count: when a later attempt starts again at a step, what was recorded from there on is superseded."""
    kept: dict[int, dict[str, str]] = {}
    attempt = None
    for row in rows:
        number = int(row[key])
        if row["attempt"] != attempt:
            attempt = row["attempt"]
            kept = {at: old for at, old in kept.items() if at < number}
        kept[number] = row
    return [kept[number] for number in sorted(kept)]
