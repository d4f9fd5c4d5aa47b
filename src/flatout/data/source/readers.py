"""Where the bytes of samples come from. Readers nest: a cache reads from a stage, a stage from a store."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, cached_property
from queue import SimpleQueue
from typing import NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.picture_limits import MAX_FILE_BYTES
from flatout.errors import ObjectMissing, ObjectTooLarge, StorageError
from flatout.machine.files import OpenFile
from flatout.machine.mounts import is_fuse_mount
from flatout.storage.counters import StoreCounters
from flatout.storage.local import FolderStore, TarStore, read_at
from flatout.storage.members import MemberStore
from flatout.storage.protocol import Range, Store, counters_of
from flatout.units import format_bytes

_FILES_OF_MOUNTS_AT_ONCE = 16
Rows = NDArray[np.int64]
Source = str | bytes | memoryview  # a path to open, or the bytes themselves
Answer = bytes | memoryview | StorageError


class FilesIn(NamedTuple):
    """Files of a folder: an extent's offset is that of a name, and its length what the file had when it was listed."""

    folder: OpenFile
    names: bytes  # each ended by a zero byte, as the kernel takes them

    def path(self, offset: int) -> str:
        return os.path.join(self.folder.path, os.fsdecode(self.names[offset : self.names.index(0, offset)]))


Base = memoryview | OpenFile | FilesIn


class Extents(Sequence[Source | StorageError]):
    """Stretches of a few mapped or open files, or files of a folder, without an object for each: those cost a small
    picture a tenth of its time, and reading each of them from Python more."""

    def __init__(
        self, bases: Sequence[Base], which: NDArray[np.int32], offsets: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        self.bases = list(bases)
        self.which = which  # of the bases each one lies in
        self.offsets = offsets
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, at: int) -> Source | StorageError: ...
    @overload
    def __getitem__(self, at: slice) -> "Extents": ...
    def __getitem__(self, at: int | slice) -> "Source | StorageError | Extents":
        if isinstance(at, slice):
            return Extents(self.bases, self.which[at], self.offsets[at], self.lengths[at])
        return _cut(self.bases[int(self.which[at])], int(self.offsets[at]), int(self.lengths[at]))


def _cut(base: Base, offset: int, length: int) -> Source | StorageError:
    if isinstance(base, memoryview):
        return base[offset : offset + length]
    if isinstance(base, FilesIn):
        return base.path(offset)
    if length > MAX_FILE_BYTES:
        return _too_large(f"the sample at {offset} of {base.path}", length)
    return read_at(base.fileno(), offset, length, Range(f"the sample at {offset}", 0, length), base.path)


class Reader(Protocol):
    """Gives samples by row. Safe to use from several threads; may be pickled to another process."""

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        """One source or reason per row, in order."""
        ...

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        """Height and width of rows stored as RGB pixels (0, 0 where it is a file); None if all are files."""
        ...

    def counters(self) -> StoreCounters:
        """Requests of this process to the object store behind it."""
        ...


def _too_large(name: str, size: int) -> ObjectTooLarge:
    most = format_bytes(MAX_FILE_BYTES)
    return ObjectTooLarge(f"{name} has {format_bytes(size)}; a picture has at most {most}, and no more is read")


def read_source(source: Source | StorageError) -> Answer:
    """The bytes of a source; a path is read."""
    if not isinstance(source, str):
        return source
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place would wait for a writer
        with open(fd, "rb") as file:
            size = os.fstat(fd).st_size
            return _too_large(source, size) if size > MAX_FILE_BYTES else file.read()
    except FileNotFoundError:
        return ObjectMissing(f"{source} is not there any more")
    except OSError as error:
        return StorageError(f"{source} could not be read: {error.strerror}; check the disk or the mount")


@dataclass(frozen=True)
class ObjectReader:
    """One object of a store for each sample: stretches of open archives and files of folders where the kernel reads
    them, else requests."""

    store: Store
    names: tuple[str, ...]
    lengths: NDArray[np.int64]

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        if isinstance(self.store, TarStore) and self._offsets is not None:
            zeros = np.zeros(len(rows), np.int32)
            return Extents([self.store.file()], zeros, self._offsets[rows], self.lengths[rows])
        if isinstance(self.store, FolderStore):
            names, offsets = self._packed_names
            files = FilesIn(self.store.folder(), names)
            listed = Extents([files], np.zeros(len(rows), np.int32), offsets[rows], self.lengths[rows])
            return _mount_readers(os.getpid()).read(listed) if self.on_mount else listed
        if isinstance(self.store, MemberStore) and (found := self._members(self.store, rows)) is not None:
            return found
        return self._read_many(rows)

    @cached_property
    def on_mount(self) -> bool:
        """Whether these are files of a network's or a bucket's mount."""
        path = self.store.local_path(self.names[0]) if self.names else None
        return path is not None and is_fuse_mount(path) is not None

    def _read_many(self, rows: Rows) -> Sequence[Source | StorageError]:
        fits = self.lengths[rows] <= MAX_FILE_BYTES
        wanted = [Range(self.names[row], 0, int(self.lengths[row])) for row in rows[fits].tolist()]
        answers = self.store.read_many(wanted)
        if len(wanted) == len(rows):
            return answers
        left = iter(answers)
        return [
            next(left) if fit else _too_large(self.names[row], int(self.lengths[row]))
            for row, fit in zip(rows.tolist(), fits.tolist(), strict=True)
        ]

    def _members(self, store: MemberStore, rows: Rows) -> Extents | None:
        """None where the kernel does not read one of the archives, or one of the members is packed."""
        archives, offsets, plain = self._places
        if not bool(plain[rows].all()):
            return None
        used, which = np.unique(archives[rows], return_inverse=True)
        files = [store.file(archive) for archive in used.tolist()]
        bases: list[Base] = [file for file in files if file is not None]
        return (
            Extents(bases, which.astype(np.int32), offsets[rows], self.lengths[rows])
            if len(bases) == len(files)
            else None
        )

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Archive and offset of each sample, and whether its bytes lie there as they are."""
        assert isinstance(self.store, MemberStore)
        places = [self.store.table.get(name) for name in self.names]
        values = [(-1, 0, False) if p is None else (p.archive, p.offset, not (p.deflated or p.headed)) for p in places]
        table = np.array(values, np.int64).reshape(-1, 3)
        return table[:, 0], np.ascontiguousarray(table[:, 1]), table[:, 2].astype(bool)

    @cached_property
    def _packed_names(self) -> tuple[bytes, NDArray[np.int64]]:
        """All names, each ended by a zero byte, and where each begins."""
        return pack_paths(self.names)

    @cached_property
    def _offsets(self) -> NDArray[np.int64] | None:
        """Of each sample in its tar; None where the tar is not what the samples were listed from."""
        places = self.store.places(self.names) if isinstance(self.store, TarStore) else None
        if not places or [length for _, length in places] != self.lengths.tolist():
            return None
        return np.array([offset for offset, _ in places], np.int64)

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        return None

    def counters(self) -> StoreCounters:
        return counters_of(self.store)


class _MountReaders:
    """A file of a mount takes as long to open as a request to a store: read one after the other, as compiled code reads
    them, they keep everybody waiting. Daemon threads: a mount that never answers keeps no process from ending."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Answer], Source | StorageError]] = SimpleQueue()
        for number in range(_FILES_OF_MOUNTS_AT_ONCE):
            threading.Thread(target=self._work, name=f"flatout-read {number}", daemon=True).start()

    def read(self, sources: Sequence[Source | StorageError]) -> list[Answer]:
        futures: list[Future[Answer]] = [Future() for _ in sources]
        for asked in zip(futures, sources, strict=True):
            self._asked.put(asked)
        return [future.result() for future in futures]

    def _work(self) -> None:
        while True:
            future, source = self._asked.get()
            try:
                future.set_result(read_source(source))
            except BaseException as error:  # of any kind: who asked is told
                future.set_exception(error)
            del future, source  # else this thread would keep the bytes until it is asked again


@cache
def _mount_readers(process: int) -> _MountReaders:
    """Of this process: threads do not survive a fork."""
    return _MountReaders()


def pack_paths(names: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """All names, each ended by a zero byte as the kernel takes them, and where each begins."""
    blob = os.fsencode("\0".join([*names, ""]))
    ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0)
    return blob, np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
