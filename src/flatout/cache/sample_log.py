"""Encoded samples appended to one local file as they arrive, with a journal that survives a kill.

A journal record is written after the sample's bytes, so every sample in the journal is complete. Bytes of an earlier
process are compared with their checksum when they are first used.
"""

import errno
import fcntl
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.errors import NoSpace

_RECORD = struct.Struct("<QQQQQII")  # row, offset, length, locator, checksum, checksum of the record so far
Locators = NDArray[np.uint64]  # [rows, 2]: 16 bytes that identify the content of each row; zeros if unknown


class SampleLog:
    """Bytes by row, in `folder`. Safe to use from several threads; a second process gets NoSpace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.full: str | None = None  # why nothing more is written; None while it is
        self._lock = threading.Lock()
        self._where: dict[int, tuple[int, int, int]] = {}
        self._unverified: set[int] = set()
        self._end = 0
        self._files: tuple[int, int, int] | None = None
        self._locators: Locators | None = None

    def __len__(self) -> int:
        return len(self._where)

    def open(self, locators: Locators | None = None) -> "SampleLog":
        """Read the journal of an earlier process; a damaged end of it is dropped.

        With `locators`, samples that were kept under another locator than their row has now are dropped too: the bytes
        behind the row may have changed.
        """
        self._locators = locators
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise NoSpace(f"{self.folder} is being filled by another run; this one reads from the store") from None
        data, journal = (
            os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in ("data", "journal")
        )
        self._files = (data, journal, lock)
        self._recover(data, journal)
        return self

    def get(self, row: int) -> bytes | None:
        """The bytes; None where they are not here, or not what was written."""
        found = self._where.get(row)
        if found is None or self._files is None:
            return None
        offset, length, checksum = found
        try:
            blob = os.pread(self._files[0], length, offset)
        except OSError:  # a failing disk: the caller reads from the store
            blob = b""
        if len(blob) != length or (row in self._unverified and zlib.crc32(blob) != checksum):
            self._where.pop(row, None)  # another thread may have removed it
            return None
        self._unverified.discard(row)
        return blob

    def put(self, row: int, blob: bytes | memoryview) -> bool:
        """Append; False once the disk is full (see `full`), which is no error: the caller reads from the store."""
        if self.full is not None or self._files is None or row in self._where:
            return False
        with self._lock:
            offset, self._end = self._end, self._end + len(blob)
        checksum = zlib.crc32(blob)
        try:
            _write_all(self._files[0], blob, offset)
            head = _RECORD.pack(row, offset, len(blob), *self._locator(row), checksum, 0)[:-4]
            with self._lock:
                if os.write(self._files[1], head + zlib.crc32(head).to_bytes(4, "little")) < _RECORD.size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.full = f"{self.folder}: {error.strerror}"
            return False
        self._where[row] = (offset, len(blob), checksum)
        return True

    def close(self) -> None:
        if self._files is not None:
            for fd in self._files:
                os.close(fd)
            self._files = None

    def _locator(self, row: int) -> tuple[int, int]:
        if self._locators is None or row >= len(self._locators):
            return 0, 0
        first, second = self._locators[row].tolist()
        return first, second

    def _is_proven(self, row: int, kept: tuple[int, int]) -> bool:
        return self._locators is None or (kept != (0, 0) and kept == self._locator(row))

    def _recover(self, data: int, journal: int) -> None:
        size, at = os.fstat(data).st_size, 0
        records = os.pread(journal, os.fstat(journal).st_size, 0)
        while at + _RECORD.size <= len(records):
            row, offset, length, first, second, checksum, own = _RECORD.unpack_from(records, at)
            if zlib.crc32(records[at : at + _RECORD.size - 4]) != own or offset + length > size:
                break
            if self._is_proven(row, (first, second)):
                self._where[row] = (offset, length, checksum)
                self._unverified.add(row)
            self._end = max(self._end, offset + length)
            at += _RECORD.size
        if not self._where:  # no sample is usable: start with an empty file
            at = self._end = 0
            os.ftruncate(data, 0)
        os.ftruncate(journal, at)
        os.lseek(journal, at, os.SEEK_SET)


def _write_all(fd: int, blob: bytes | memoryview, offset: int) -> None:
    view = memoryview(blob)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
