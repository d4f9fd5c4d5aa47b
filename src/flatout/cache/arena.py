"""Decoded samples in one mapping of fixed size, of anonymous memory or a file on local disk; each is written once.

A file is allocated in advance (posix_fallocate): a full disk is a NoSpace here, instead of a SIGBUS when a page is
written. The index entry of a row is written after its pixels.
"""

import fcntl
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from flatout.errors import NoSpace
from flatout.machine.files import OpenFile, read_text
from flatout.units import format_bytes

_ROW = np.dtype([("end", "<i8"), ("height", "<i4"), ("width", "<i4")])
"""`end` is 0 for a row that is not there, and negative while it is being written."""
_LAYOUT = "RGB, or planes where the width is below 0"  # of another one nothing is used again
Samples = TypeVar("Samples", int, NDArray[np.int64])
Shared = tuple[memoryview, NDArray[np.int64], NDArray[np.int64], OpenFile | None]


class Arena:
    """Pictures as rows of RGB, or, where their width is below 0, as the planes of 4:2:0 JPEGs (native/planes.c): luma,
    then two of half as many columns and rows, each in whole blocks of 8. Safe to use from several threads; a second
    process gets NoSpace for the same file.

    Compiled code that fills it takes room by itself, from `shared`; then nobody may call put() at the same time.
    """

    def __init__(
        self,
        rows: int,
        pixels: memoryview,
        index: NDArray[np.void],
        file: OpenFile | None = None,
        lock: int | None = None,
    ) -> None:
        self.capacity_bytes = len(pixels)
        self.rows = rows
        self.pixels = pixels  # of all rows, in the order in which they were written
        self._file = file
        self._index = index
        index["end"][index["end"] < 0] = 0  # a process was killed while it wrote these
        self._words = index.view(np.int64).reshape(rows, 2)  # the same as two int64 a row: faster to gather
        self._used = np.array([index["end"].max(initial=0), 0], np.int64)  # bytes used; and for native/arena.c
        self._lock = threading.Lock()
        self._file_lock = lock

    @property
    def used_bytes(self) -> int:
        return int(self._used[0])

    @property
    def shared(self) -> Shared:
        """Pixels, index, bytes used and the file of the pixels, for native/arena.c."""
        return self.pixels, self._words, self._used, self._file

    def find(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Where the pixels of each row begin, how many bytes they are, height and width; all 0 where it is not here. A
        width below 0 says that they are planes."""
        found = self._words.take(rows, axis=0)
        ends = np.maximum(found[:, 0], 0)
        shapes = np.where(ends[:, None] > 0, found.view(np.int32)[:, 2:], 0)
        lengths = kept_bytes(shapes[:, 0].astype(np.int64), shapes[:, 1].astype(np.int64))
        return ends - lengths, lengths, shapes

    def put(self, row: int, pixels: NDArray[np.uint8]) -> bool:
        """Copy the pixels in; False when there is no room left or the row is there already."""
        height, width, _ = pixels.shape
        with self._lock:
            end = self.used_bytes + pixels.nbytes
            if self._index[row]["end"] or end > self.capacity_bytes:
                return False
            self._index["end"][row] = -1  # another thread must not take room for the same row
            self._used[0] = end
        self.pixels[end - pixels.nbytes : end] = np.ascontiguousarray(pixels).reshape(-1).data
        self._index["height"][row], self._index["width"][row] = height, width
        self._index["end"][row] = end  # last: from here on it is found
        return True

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Drop rows whose pixels must not be used. Called before the arena is read or filled."""
        self._index["end"][rows] = 0
        self._used[0] = self._index["end"].max(initial=0)

    def close(self) -> None:
        if self._file_lock is not None:
            os.close(self._file_lock)
            self._file_lock = None


def kept_bytes(heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of pictures as an arena has them; as native/planes.c."""
    if not (widths < 0).any():
        return 3 * heights * widths
    halves = whole_blocks((heights + 1) // 2) * whole_blocks((1 - widths) // 2)
    return np.where(widths < 0, whole_blocks(heights) * whole_blocks(-widths) + 2 * halves, 3 * heights * widths)


def whole_blocks(samples: Samples) -> Samples:
    """Rows or columns of a plane as libjpeg writes them: whole blocks of eight."""
    return (samples + 7) // 8 * 8


def memory_arena(rows: int, capacity_bytes: int, huge_pages: bool = True) -> Arena:
    """Anonymous memory; pages are taken as they are filled. Without huge pages, that costs the same every time."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # Python's default, MAP_SHARED, costs 50 % more per page
    pixels = memoryview(mmap.mmap(-1, capacity_bytes + 1, flags=private))
    # from an odd address on: libjpeg writes to aligned rows with stores that bypass the processor's caches
    arena = Arena(rows, pixels[1:], np.zeros(rows, _ROW))
    arena.shared[2][1] = 0 if huge_pages else np.iinfo(np.int64).max  # 2 MiB stretches before one is tried
    return arena


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
        file = OpenFile(folder / "pixels", os.O_RDWR)
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
    return Arena(rows, memoryview(pixels), np.frombuffer(index_map, _ROW, rows), file, lock)


def _drop_unless_usable(folder: Path, index_bytes: int, pixel_bytes: int) -> None:
    """Index and pixels are kept together or not at all; what an earlier boot wrote may not have reached the disk."""
    boot, marker, index, pixels = _boot_id(), folder / "boot", folder / "index", folder / "pixels"
    try:
        usable = index.stat().st_size == index_bytes and pixels.stat().st_size >= pixel_bytes
        usable = usable and marker.read_text(encoding="ascii", errors="replace") == f"{boot} {_LAYOUT}"
    except FileNotFoundError:
        usable = False
    if not usable:
        _remove(folder)
        marker.write_text(f"{boot} {_LAYOUT}", encoding="ascii")


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
    return (read_text("/proc/sys/kernel/random/boot_id") or "unknown").strip()
