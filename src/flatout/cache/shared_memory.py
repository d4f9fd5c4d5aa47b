"""Buffers as mapped files in /dev/shm, read by any number of processes without a copy.

Files are allocated before use, since writing to an unallocated page of a full tmpfs is a SIGBUS. One process owns the
folder and holds its lock; folders of killed owners are removed by the next. A process that has a removed file mapped
keeps its memory.
"""

import fcntl
import mmap
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from flatout.cache.bundle import check_bundle
from flatout.errors import BadBundle, NoSpace
from flatout.units import format_bytes

_SHM = Path("/dev/shm")  # noqa: S108 (private files and folders are made there)
_MOST_MAPPED = 256  # each holds a file descriptor, of which a process may have 1024 by default
_LOOK_EVERY = 16  # new mappings, after which files that were removed are unmapped: that lists the folder


class MappedStore:
    """Buffers in a folder, by number. The owner makes and removes them; others map them once and keep the mapping, so
    that a buffer that is used again costs no page faults."""

    is_mapped = True

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder
        self._mapped: dict[tuple[int, bool], mmap.mmap] = {}
        self._lock = threading.Lock()

    def space(self, number: int, count: int) -> memoryview:
        """The whole buffer; the owner made it large enough."""
        return self._view(number, writable=True)

    def commit(self, number: int, key: bytes, space: memoryview, count: int) -> None:
        """Nothing to do: the batch was written in place."""

    def read(self, number: int, key: bytes, most_bytes: int) -> memoryview:
        """The whole buffer; nothing is allocated, so `most_bytes` does not matter."""
        return self._view(number)

    def verify(self, number: int, key: bytes) -> None:
        check_bundle(self._view(number), key, verify=True)

    def _view(self, number: int, writable: bool = False) -> memoryview:
        with self._lock:
            mapped = self._mapped.pop((number, writable), None)
            if mapped is None:
                if len(self._mapped) % _LOOK_EVERY == 0:
                    self._drop_removed()
                while len(self._mapped) >= _MOST_MAPPED:
                    del self._mapped[next(iter(self._mapped))]
                mapped = _map(self._folder / str(number), writable)
            self._mapped[number, writable] = mapped  # most recently used last
        return memoryview(mapped)

    def _drop_removed(self) -> None:
        """Unmap removed files; their memory is freed with the last array on it."""
        with suppress(FileNotFoundError):
            there = set(os.listdir(self._folder))
            for gone in [each for each in self._mapped if str(each[0]) not in there]:
                del self._mapped[gone]


def _map(path: Path, writable: bool) -> mmap.mmap:
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise BadBundle(f"the shared batch {path} cannot be opened: {error.strerror}") from None
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # the writer maps all pages at once: 9,000 page faults of a 38 MB batch cost more than its checksum
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if writable else 0)
        return mmap.mmap(fd, os.fstat(fd).st_size, flags, protection)
    finally:
        os.close(fd)


class OwnedStore(MappedStore):
    """The store of the process that owns it: a new folder under `root`, locked until `close`."""

    def __init__(self, root: Path) -> None:
        private_folder(root)
        _remove_orphans(root)
        super().__init__(Path(tempfile.mkdtemp(prefix="batches-", dir=root)))
        self._file_lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def make(self, number: int, count: int) -> None:
        """A new buffer of this size, all of it allocated."""
        path = self._folder / str(number)
        try:
            with open(path, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, count)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise NoSpace(
                f"no room for a shared batch of {format_bytes(count)} in {self._folder}: {error.strerror}"
            ) from None

    def discard(self, number: int, key: bytes | None) -> None:
        (self._folder / str(number)).unlink(missing_ok=True)

    def touch(self, key: bytes) -> None:
        """Nothing to do: mapped batches have no time to live."""

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._file_lock)


def shared_root() -> Path:
    """The parent folder of a user's shared batches."""
    return memory_folder() / f"flatout-{os.getuid()}"


def memory_folder() -> Path:
    """For files that are mapped: memory where /dev/shm can be written to, else the temporary folder."""
    return _SHM if _is_usable(_SHM) else Path(tempfile.gettempdir())


def memory_note() -> str | None:
    """A note for the user where buffers are not in memory; None where they are."""
    if _is_usable(_SHM):
        return None
    return (
        f"{_SHM} {'cannot be written to' if _SHM.is_dir() else 'is missing'}: buffers are mapped from {memory_folder()}"
    )


def _is_usable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def private_folder(folder: Path) -> Path:
    """Make the folder if it is not there; NoSpace unless it belongs to this user and to nobody else."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise NoSpace(f"{folder} is not a private folder of this user (mode 0700); remove it, or ask its owner to")
    return folder


def _remove_orphans(root: Path) -> None:
    for folder in root.glob("batches-*"):
        with suppress(OSError):
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
