"""Decoded samples in one bounded stretch of memory, anonymous or a file on local disk, each written once.

Room is taken before anything is written: memory by a mapping of fixed size, disk by posix_fallocate, so that a full
disk is an answer here and not a SIGBUS later. A row is published only after its pixels are in place.
"""

import fcntl
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.errors import NoSpace
from flatout.units import format_bytes

_ROW = np.dtype([("end", "<i8"), ("height", "<i4"), ("width", "<i4")])  # end 0: not there


class Arena:
    """Rows of RGB pixels. Safe to use from several threads; a second process gets NoSpace for the same file."""

    def __init__(self, rows: int, capacity_bytes: int, pixels: mmap.mmap, index: NDArray[np.void]) -> None:
        self.capacity_bytes = capacity_bytes
        self.rows = rows
        self._pixels = memoryview(pixels)
        self._index = index
        self._words = index.view(np.int64).reshape(rows, 2)  # the same, faster to gather: end; height, width
        self._used = int(index["end"].max(initial=0))
        self.full = False  # from the first sample on that found no room
        self._lock = threading.Lock()
        self._filling: set[int] = set()  # so that two threads do not take room for the same row
        self._file_lock: int | None = None

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def pixels(self) -> memoryview:
        """Of all rows."""
        return self._pixels

    def find(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Where the pixels of each row begin, how many bytes they are, height and width; all 0 where it is not here."""
        found = self._words.take(rows, axis=0)
        ends = found[:, 0]
        shapes = np.where(ends[:, None] > 0, found.view(np.int32)[:, 2:], 0)
        lengths = 3 * shapes[:, 0].astype(np.int64) * shapes[:, 1]
        return ends - lengths, lengths, shapes

    def put(self, row: int, pixels: NDArray[np.uint8]) -> bool:
        """Copy the pixels in; False when there is no room left or the row is there already."""
        height, width, _ = pixels.shape
        with self._lock:
            end = self._used + pixels.nbytes
            if self._index[row]["end"] or row in self._filling:
                return False
            if end > self.capacity_bytes:
                self.full = True
                return False
            self._filling.add(row)
            self._used = end
        self._pixels[end - pixels.nbytes : end] = np.ascontiguousarray(pixels).reshape(-1).data
        self._index["height"][row], self._index["width"][row] = height, width
        self._index["end"][row] = end  # last: from here on it is found
        self._filling.discard(row)
        return True

    def close(self) -> None:
        if self._file_lock is not None:
            os.close(self._file_lock)
            self._file_lock = None


def memory_arena(rows: int, capacity_bytes: int) -> Arena:
    """Anonymous memory; pages are taken as they are filled."""
    return Arena(rows, capacity_bytes, mmap.mmap(-1, max(1, capacity_bytes)), np.zeros(rows, _ROW))


def disk_arena(folder: Path, rows: int, capacity_bytes: int) -> Arena:
    """Files in a folder, found again by a later run; one process at a time."""
    index_bytes, pixel_bytes = max(1, rows * _ROW.itemsize), max(1, capacity_bytes)
    lock = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _drop_unless_usable(folder, index_bytes, pixel_bytes)
        index_map, pixels = _mapped(folder / "index", index_bytes), _mapped(folder / "pixels", pixel_bytes)
    except BlockingIOError:
        assert lock is not None
        os.close(lock)
        raise NoSpace(f"the disk cache {folder} is in use by another run; this one goes without") from None
    except OSError as error:
        if lock is not None:
            _remove(folder)
            os.close(lock)
        raise NoSpace(
            f"no room for a disk cache of {format_bytes(capacity_bytes)} in {folder}: {error.strerror}; "
            "free some space, or set data.cache=off"
        ) from None
    arena = Arena(rows, len(pixels), pixels, np.frombuffer(index_map, _ROW, rows))
    arena._file_lock = lock
    return arena


def _drop_unless_usable(folder: Path, index_bytes: int, pixel_bytes: int) -> None:
    """Index and pixels are kept together or not at all; those of an earlier boot may not have reached the disk."""
    boot, marker, index, pixels = _boot_id(), folder / "boot", folder / "index", folder / "pixels"
    try:
        usable = index.stat().st_size == index_bytes and pixels.stat().st_size >= pixel_bytes
        usable = usable and marker.read_text(encoding="ascii", errors="replace") == boot
    except FileNotFoundError:
        usable = False
    if not usable:
        _remove(folder)
        marker.write_text(boot, encoding="ascii")


def _mapped(path: Path, size: int) -> mmap.mmap:
    """A file of at least this size, all of it allocated."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _remove(folder: Path) -> None:
    for name in ("pixels", "index", "boot"):
        with suppress(OSError):
            (folder / name).unlink()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
