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
        self._used = int(index["end"].max(initial=0))
        self._lock = threading.Lock()
        self._file_lock: int | None = None

    @property
    def used_bytes(self) -> int:
        return self._used

    def get(self, row: int) -> tuple[memoryview, int, int] | None:
        """Pixels, height and width, or None."""
        end, height, width = self._index[row].item()
        return None if end == 0 else (self._pixels[end - height * width * 3 : end], height, width)

    def put(self, row: int, pixels: NDArray[np.uint8]) -> bool:
        """Copy the pixels in; False when there is no room left or the row is there already."""
        height, width, _ = pixels.shape
        with self._lock:
            end = self._used + pixels.nbytes
            if end > self.capacity_bytes or self._index[row]["end"]:
                return False
            self._used = end
        self._pixels[end - pixels.nbytes : end] = np.ascontiguousarray(pixels).reshape(-1).data
        self._index[row] = (end, height, width)
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
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        index_map = _mapped(folder / "index", max(1, rows * _ROW.itemsize), folder)
        pixels = _mapped(folder / "pixels", capacity_bytes, folder)
    except BlockingIOError:
        os.close(lock)
        raise NoSpace(f"the disk cache {folder} is in use by another run; this one goes without") from None
    except OSError as error:
        os.close(lock)
        _remove(folder)
        raise NoSpace(
            f"no room for a disk cache of {format_bytes(capacity_bytes)} in {folder}: {error.strerror}; "
            "free some space, or set data.cache=off"
        ) from None
    arena = Arena(rows, len(pixels), pixels, np.frombuffer(index_map, _ROW, rows))
    arena._file_lock = lock
    return arena


def _mapped(path: Path, size: int, folder: Path) -> mmap.mmap:
    """A file of this size, all of it allocated. Contents of an earlier boot may not have reached the disk: dropped."""
    boot = _boot_id()
    marker = folder / "boot"
    if path.exists() and (path.stat().st_size < size or not marker.exists() or marker.read_text() != boot):
        _remove(folder)
    marker.write_text(boot)
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
