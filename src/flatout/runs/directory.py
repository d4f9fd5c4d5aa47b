"""A run's directory: which file is what, who may write to it, and writing that never leaves half a file."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from flatout import untrusted
from flatout.errors import BadFile, RunDirectoryError
from flatout.runs.files import described
from flatout.untrusted import blamed_as

Fate = Literal["here", "deleted", "moved", "replaced"]
"""Of a run directory in mid-run. Emptied is deleted; replaced: another directory or another process has its name."""


class RunDirectory:
    """Paths of one run, and the lock that keeps a second process out."""

    def __init__(self, root: Path) -> None:
        self._lock: int | None = None
        self._home: int | None = None  # the directory itself, open: its number is not given to another one meanwhile
        self._made: list[Path] = []  # folders that were not there before
        self._set_paths(root)

    def _set_paths(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"
        self.environment = root / "env.json"
        self.resolved = root / "resolved.json"  # what was decided for this run, with the reasons
        self.steps = root / "steps.csv"
        self.epochs = root / "epochs.csv"
        self.system = root / "system.csv"
        self.other_gpus = root / "system-ranks.csv"  # those of the other ranks
        self.quarantine = root / "quarantine.csv"
        self.classes = root / "classes.json"  # names in the order of labels; not there where labels are not classes
        self.summary = root / "summary.json"
        self.cost = root / "cost.json"
        self.link = root / "link.json"  # what was measured between the ranks
        self.log = root / "log.txt"
        self.spans = root / "spans"
        self.checkpoints = root / "checkpoints"
        self._lock_path = root / "lock"

    def rank_spans(self, rank: int = 0) -> Path:
        """The span file of one rank."""
        return self.spans / f"rank{rank}.jsonl"

    @property
    def exists(self) -> bool:
        return self.config.exists()

    def require_own_files(self) -> None:
        """RunDirectoryError where a file of the run is a pipe or a device, or a link that leads out of the directory
        or nowhere: whoever made it would have another file shown, or written to. Folders of large files may lie
        elsewhere."""
        home = os.path.realpath(self.root)
        for folder in (self.root, self.spans):
            for entry in _entries(folder):
                if entry.is_symlink():
                    inside = os.path.realpath(entry.path).startswith(home + os.sep) and os.path.exists(entry.path)
                elif inside := entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                    continue
                if not inside and (entry.name == self.spans.name or described(os.path.relpath(entry.path, self.root))):
                    raise RunDirectoryError(
                        f"{entry.path} leads out of the run directory or nowhere, or is a pipe or a device; remove it"
                    )

    def lock(self) -> None:
        """Hold the run until this process ends; the kernel lets go of it even after a kill -9."""
        self.require_own_files()
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
        self._release()

    def _release(self) -> None:
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
            self._set_paths(moved_to)
            return
        self._release()
        if fate == "replaced":
            self._set_paths(
                self.root.with_name(f"{self.root.name}-kept-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
            )
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

    def owner(self) -> int | None:
        """The process of this machine that holds the lock; None where there is none, or it cannot be told for sure: a
        number in a file may be another process by now."""
        with suppress(OSError, ValueError, BadFile):
            owner = int(untrusted.read_text(self._lock_path, 64).strip() or 0)
            about = os.stat(self._lock_path)
            for fd in os.listdir(f"/proc/{owner}/fd"):
                with suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{owner}/fd/{fd}"), about) and self.in_use():
                        return owner
        return None

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


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """None where there is no such folder."""
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _same(fd: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.stat(path))
    return False


def _locked(path: Path) -> int | None:
    """An open, locked file, or None where its owner removed it meanwhile. Refused while another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # what a link leads to is never emptied
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
    """Indented, finite numbers only; whole or not at all, as `write_text`."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def mark_ended(directory: RunDirectory, status: str, cause: str) -> None:
    """Sets status and cause where the full summary cannot be written; a run that has ended keeps its status."""
    summary = read_json(directory.summary)
    if summary.get("status") != "running":
        return
    ended = {**summary, "status": status, "cause": cause}
    try:
        write_json(directory.summary, ended)
    except OSError:  # a full disk: without its indentation the text fits where the old one is
        _overwrite(directory.summary, json.dumps(ended))


def mark_failed(directory: RunDirectory, cause: str) -> None:
    """As `mark_ended`, of a run that did not end by itself."""
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
    """The keys of a JSON file; none where it is not there or holds no keys."""
    try:
        with blamed_as(RunDirectoryError):
            values = untrusted.read_json(path)
    except FileNotFoundError:
        return {}
    return values if isinstance(values, dict) else {}
