"""Buffers as mapped files in /dev/shm: written once, read by any number of processes without a copy.

Room is allocated before use, since touching an unallocated page of a full tmpfs is a SIGBUS. One process owns the
folder and holds its lock; what a dead owner left behind is removed by the next. A removed file lives on for those
who have it mapped, so nothing is ever taken away from a reader.
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
_MOST_MAPPED = 256  # each mapping holds a descriptor: a thousand small batches would be more than a process may have
_LOOK_EVERY = 16  # new mappings: looking for files that are gone takes longer the more there are


class MappedStore:
    """Buffers in a folder, by number. The owner makes and removes them; anybody maps them, once, and keeps the mapping:
    a buffer that is used again costs no page faults."""

    is_mapped = True

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder
        self._mapped: dict[tuple[int, bool], mmap.mmap] = {}
        self._lock = threading.Lock()

    def space(self, number: int, count: int) -> memoryview:
        """Where to write a batch: it was made large enough."""
        return self._view(number, writable=True)

    def commit(self, number: int, key: bytes, space: memoryview, count: int) -> None:
        """Nothing to do: it was written where it stays."""

    def read(self, number: int, key: bytes, most_bytes: int) -> memoryview:
        """Mapped, not allocated: the file is as long as the owner made it."""
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
            self._mapped[number, writable] = mapped  # the last one used is the last one
        return memoryview(mapped)

    def _drop_removed(self) -> None:
        """The memory of a removed file goes when the last array on it does."""
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
        # populated at once by the writer: 9,000 page faults of a 38 MB batch cost more than its checksum
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if writable else 0)
        return mmap.mmap(fd, os.fstat(fd).st_size, flags, protection)
    finally:
        os.close(fd)


class OwnedStore(MappedStore):
    """The owner's side: a new folder of its own under `root`, locked while it lives."""

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
        """Memory does not forget."""

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._file_lock)


def shared_root() -> Path:
    """Where a user's shared batches live."""
    return memory_folder() / f"flatout-{os.getuid()}"


def memory_folder() -> Path:
    """For files that are mapped: memory where /dev/shm can be written to, else the temporary folder."""
    return _SHM if _is_usable(_SHM) else Path(tempfile.gettempdir())


def memory_note() -> str | None:
    """What is said where it is not memory."""
    if _is_usable(_SHM):
        return None
    return (
        f"{_SHM} {'cannot be written to' if _SHM.is_dir() else 'is missing'}: buffers are mapped from {memory_folder()}"
    )


def _is_usable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def free_bytes(root: Path) -> int:
    """What the file system of the nearest existing folder still has."""
    while not root.exists():
        root = root.parent
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def private_folder(folder: Path) -> Path:
    """Made if need be; refused unless it is ours and nobody else's."""
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
