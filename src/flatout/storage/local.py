"""A folder, or an uncompressed tar, on a disk of this machine. Nothing is held across pickles; an open tar is read at
offsets only, so that threads and forks may share it."""

import os
import stat
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flatout.errors import AccessDenied, DamagedArchive, ObjectMissing, StorageError
from flatout.machine.files import OpenFile
from flatout.storage.locators import LOCATOR_BYTES, file_locator
from flatout.storage.protocol import Entry, Range
from flatout.storage.tar_index import index_tar
from flatout.units import format_bytes

_FEW_FOLDERS = 16  # are listed without threads, whose stacks take memory,
_SMALL_FOLDERS_BYTES = 2**18  # unless these have many names: some 7,000, in bytes of a folder as ext4 has them
_MOST_WHOLE_BYTES = 2**32  # the index of a pack of ten million samples has 1 GB
Identity = tuple[int, int]
"""Numbers of a file system and of a file or folder on it."""
_LISTED_AT_ONCE = 4  # folders: a network file system answers several at once, and compiled listing uses all cores


def outside_error(what: str, wanted: Range, object_bytes: int) -> StorageError:
    end = "the end" if wanted.length is None else wanted.start + wanted.length
    return StorageError(
        f"{what} has {object_bytes} bytes, asked for {wanted.start} to {end}; "
        "it changed since it was indexed, index it again"
    )


def _open(path: str, expected: Identity | None) -> OpenFile:
    """StorageError where the path leads to another file or folder than the `expected` one."""
    try:
        opened = OpenFile(path)
    except OSError as error:
        raise as_storage_error(path, error) from None
    if expected not in (None, _identity_of(opened)):
        raise _replaced(path)
    return opened


def _require_in_place(opened: OpenFile) -> None:
    """StorageError where its path leads to another one by now: what was learnt by the path is not of this one."""
    if _identity(opened.path) != _identity_of(opened):
        raise _replaced(opened.path)


def _identity_of(opened: OpenFile) -> Identity:
    return _number(os.fstat(opened.fileno()))


@dataclass(eq=False)
class FolderStore:
    """Regular files under `root`, through symbolic links, each folder once."""

    root: str
    url: str = field(init=False)
    _opened: OpenFile | None = field(default=None, init=False, repr=False)
    _expected: Identity | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = self.root

    def __getstate__(self) -> dict[str, Any]:
        """Opened again in the other process, which must find the same folder."""
        expected = self._expected if self._opened is None else _identity_of(self._opened)
        return {**self.__dict__, "_opened": None, "_expected": expected}

    def folder(self) -> OpenFile:
        """The root itself, for those who open files relative to it. It is the one that was listed, whatever has its
        name by now."""
        if self._opened is None:
            self._opened = _open(self.root, self._expected)  # two threads may both open it: harmless
        return self._opened

    def origin(self) -> str:
        return os.path.realpath(self.root)

    def entries(self) -> Iterator[Entry]:
        for found in self.listed():
            sizes, locators = memoryview(found.sizes).cast("q"), found.locators
            for row, name in enumerate(found.names):
                yield Entry(name, sizes[row], locators[LOCATOR_BYTES * row : LOCATOR_BYTES * (row + 1)])

    def listed(self, list_folder: "ListFolder | None" = None) -> Iterator["ListedFolder"]:
        """Folder by folder, each once, several at a time. Real folders first, then linked ones: what a link leads to a
        second time keeps its real name."""
        folder = self.folder()
        seen = {_identity_of(folder)}
        waiting, linked = [""], list[str]()
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
            while waiting:
                paths = [os.path.join(self.root, prefix) for prefix in waiting]
                several = pool.map if _take_long(paths) else map
                deeper: list[str] = []
                for prefix, found in zip(waiting, several(list_folder or list_in_python, paths, waiting), strict=True):
                    yield found
                    linked += [prefix + name for name in found.links]
                    deeper += [f"{name}/" for name in self._new(prefix, found.folders, seen)]
                waiting = deeper
                while linked and not waiting:
                    linked.sort(reverse=True)
                    waiting = [f"{name}/" for name in self._new("", [linked.pop()], seen)]
        _require_in_place(folder)

    def _new(self, prefix: str, folders: Sequence[str], seen: set[tuple[int, int]]) -> Iterator[str]:
        """Those of the folders that were not come to before."""
        for name in folders:
            identity = _identity(os.path.join(self.root, prefix + name))
            if identity not in seen:
                seen.add(identity)
                yield prefix + name

    def entry(self, name: str) -> Entry:
        """Of one file, without listing the others."""
        path = os.path.join(self.root, name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise as_storage_error(path, error) from None
        return Entry(name, status.st_size, file_locator(status))

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        return [self._read(wanted) for wanted in ranges]

    def local_path(self, name: str) -> str | None:
        return os.path.join(self.root, name)

    def close(self) -> None:
        pass

    def _read(self, wanted: Range) -> bytes | StorageError:
        what = f"{self.root}: {wanted.name!r}"
        if wanted.name.startswith("/") or ".." in wanted.name.split("/"):
            return StorageError(f"{what} leads out of the folder; names are relative and without '..'")
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait for a writer
            file = os.open(wanted.name, flags, dir_fd=self.folder().fileno())
        except StorageError as error:
            return error
        except (OSError, ValueError) as error:
            return as_storage_error(what, error)
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                return StorageError(f"{what} is no file; remove it")
            return read_at(file, 0, about.st_size, wanted, self.root)
        except OSError as error:
            return as_storage_error(what, error)
        finally:
            os.close(file)


@dataclass(eq=False)
class TarStore:
    """Regular members of an uncompressed tar. The table of offsets is made on first use and travels with a pickle."""

    path: str
    _members: dict[str, tuple[int, int]] | None = field(default=None, repr=False)
    """Name -> offset and length of its bytes."""
    url: str = field(init=False)
    _file: OpenFile | None = field(default=None, init=False, repr=False)
    _expected: Identity | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = self.path

    def __getstate__(self) -> dict[str, Any]:
        """Opened again in the other process, which must find the same archive."""
        expected = self._expected if self._file is None else _identity_of(self._file)
        return {**self.__dict__, "_file": None, "_expected": expected}

    def origin(self) -> str:
        return os.path.realpath(self.path)

    def entries(self) -> Iterator[Entry]:
        table = self._table()
        status = os.fstat(self.file().fileno())
        for name, (offset, byte_count) in table.items():
            yield Entry(name, byte_count, file_locator(status, b"%d %d" % (offset, byte_count)))

    def file(self) -> OpenFile:
        """The archive itself, for those who know the places of its members."""
        if self._file is None:
            self._file = _open(self.path, self._expected)  # two threads may both open it: harmless
        return self._file

    def places(self, names: Sequence[str]) -> list[tuple[int, int]] | None:
        """Offset and length of each; None unless all are members."""
        found = [self._table().get(name) for name in names]
        return [place for place in found if place is not None] if None not in found else None

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        try:
            table, file = self._table(), self.file()
        except StorageError as error:
            return [error for _ in ranges]
        return [self._read(file.fileno(), table, wanted) for wanted in ranges]

    def local_path(self, name: str) -> str | None:
        return None

    def close(self) -> None:
        pass

    def _table(self) -> dict[str, tuple[int, int]]:
        if self._members is None:
            file = self.file()
            self._members = index_tar(self.path)
            _require_in_place(file)
        return self._members

    def _read(self, file: int, table: dict[str, tuple[int, int]], wanted: Range) -> bytes | StorageError:
        place = table.get(wanted.name)
        if place is None:
            return ObjectMissing(f"{self.path}: {wanted.name!r} is not a member of the archive; check the name")
        try:
            return read_at(file, *place, wanted, self.path)
        except OSError as error:
            return as_storage_error(f"{self.path}: {wanted.name!r}", error)


def read_at(file: int, offset: int, object_bytes: int, wanted: Range, root: str) -> bytes | StorageError:
    """Exactly the bytes asked for of an object that begins at `offset`, or why not."""
    if wanted.length is None and object_bytes > _MOST_WHOLE_BYTES:  # the file may be sparse, and take no disk
        has = f"has {format_bytes(object_bytes)}, limit {format_bytes(_MOST_WHOLE_BYTES)}"
        return DamagedArchive(f"{root}: {wanted.name!r} {has} for what is read whole; it was damaged, copy it again")
    end = object_bytes if wanted.length is None else wanted.start + wanted.length
    if not 0 <= wanted.start <= end <= object_bytes:
        return outside_error(f"{root}: {wanted.name!r}", wanted, object_bytes)
    data = os.pread(file, end - wanted.start, offset + wanted.start)
    while len(data) < end - wanted.start:  # the kernel gives at most 2 GB at once, network file systems less
        more = os.pread(file, end - wanted.start - len(data), offset + wanted.start + len(data))
        if not more:
            return StorageError(
                f"{root}: {wanted.name!r} ended after {len(data)} of {end - wanted.start} bytes; "
                "it shrank while being read"
            )
        data += more
    return data


class ListedFolder(NamedTuple):
    """What one folder holds, in the order of the names' bytes: whoever sorts samples finds them sorted. Links are
    followed, and those that lead nowhere are left out."""

    names: list[str]  # of regular files, relative to the store's root
    sizes: bytes  # an int64 each
    locators: bytes  # LOCATOR_BYTES each
    folders: list[str]  # their own names
    links: list[str]  # to folders


ListFolder = Callable[[str, str], ListedFolder]
"""Of a path, with what its names begin with; several threads call it."""


def list_in_python(folder: str, prefix: str) -> ListedFolder:
    """Where nothing is compiled: data/source/listing.py has the other one."""
    found, sizes, locators = ListedFolder([], b"", b"", [], []), list[int](), list[bytes]()
    for entry in _scan(folder):
        if entry.is_dir(follow_symlinks=False):
            found.folders.append(entry.name)
            continue
        try:
            status = entry.stat()
        except OSError:
            continue  # a link that leads nowhere, or round and round
        if stat.S_ISREG(status.st_mode):
            found.names.append(prefix + entry.name)
            sizes.append(status.st_size)
            locators.append(file_locator(status))
        elif stat.S_ISDIR(status.st_mode):
            found.links.append(entry.name)
    return found._replace(sizes=array("q", sizes).tobytes(), locators=b"".join(locators))


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise as_storage_error(folder, error) from None


def _take_long(folders: Sequence[str]) -> bool:
    """Whether listing them one after the other would."""
    if not 1 < len(folders) <= _FEW_FOLDERS:
        return len(folders) > 1
    with suppress(OSError):
        return sum(map(os.path.getsize, folders)) > _SMALL_FOLDERS_BYTES
    return False


def _identity(path: str) -> Identity:
    try:
        return _number(os.stat(path))
    except OSError as error:
        raise as_storage_error(path, error) from None


def _number(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _replaced(path: str) -> StorageError:
    return StorageError(f"{path} was replaced by another one since it was listed; start again")


def as_storage_error(what: str, error: OSError | ValueError) -> StorageError:
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | ValueError):
        return ObjectMissing(f"{what} is not a file here any more; check the path, or index the data again")
    if isinstance(error, PermissionError):
        return AccessDenied(f"{what} may not be read by this user; change its permissions")
    return StorageError(f"{what} could not be read: {error.strerror}; check the disk or the mount")
