"""An archive of any store, or a stretch of one, as a file that is read at offsets: indexes are made through it."""

import io
import os
from typing import Any

from flatout.errors import StorageError
from flatout.machine.files import OpenFile
from flatout.storage.protocol import Store, read_one

_WINDOW_BYTES = 128 * 1024
"""Read at once from a remote store: the headers of a few small members, or one of a large one."""


class ArchiveFile(io.RawIOBase):
    """Bytes [start, start + size) of the object `name`. Not for several threads."""

    def __init__(self, store: Store, name: str, size: int, start: int = 0) -> None:
        self.store, self.name, self.size, self.start = store, name, size, start
        self.where = f"{store.url.rstrip('/')}/{name}"
        path = store.local_path(name)
        try:
            self._local = None if path is None else OpenFile(path)
        except OSError as error:
            raise StorageError(f"{self.where} cannot be opened: {error.strerror}; check its permissions") from None
        self._at = 0
        self._window, self._window_at = b"", 0

    def within(self, start: int, size: int) -> "ArchiveFile":
        """An archive inside of this one."""
        return ArchiveFile(self.store, self.name, size, self.start + start)

    def read_at(self, length: int, offset: int) -> bytes:
        """As os.pread: fewer at the end, none beyond it or before the start: an archive says where."""
        if not 0 <= offset < self.size:
            return b""
        length = max(0, min(length, self.size - offset))
        if self._local is not None:
            return os.pread(self._local.fileno(), length, self.start + offset)
        if not self._window_at <= offset or offset + length > self._window_at + len(self._window):
            self._window = self._fetch(offset, max(length, _WINDOW_BYTES))
            self._window_at = offset
        begin = offset - self._window_at
        return self._window[begin : begin + length]

    def _fetch(self, offset: int, length: int) -> bytes:
        return read_one(self.store, self.name, self.start + offset, min(length, self.size - offset))

    # what zipfile and pyarrow ask of a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read_at(len(view), self._at) if self._at < self.size else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
