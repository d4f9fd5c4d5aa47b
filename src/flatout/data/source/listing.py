"""Every object of a store as arrays; where code is compiled, without a Python object for each file of a folder."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.decode import native
from flatout.data.source.identity import CAN_DIGEST, Words, as_words
from flatout.storage.local import FolderStore, ListedFolder, as_storage_error, list_in_python
from flatout.storage.protocol import Entry, Store


@dataclass(frozen=True, eq=False)
class ObjectTable(Mapping[str, Entry]):
    """One row for each object; an entry is made when it is asked for by its name."""

    names: list[str]
    sizes: NDArray[np.int64]
    locators: Words

    def __getitem__(self, name: str) -> Entry:
        row = self.rows[name]
        return Entry(name, int(self.sizes[row]), self.locators[row].tobytes())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    @cached_property
    def rows(self) -> dict[str, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    def rows_of(self, names: Sequence[str]) -> NDArray[np.int64]:
        rows = self.rows
        return np.array([rows[name] for name in names], np.int64)


def as_table(entries: Iterable[Entry]) -> ObjectTable:
    found = {entry.name: entry for entry in entries}
    sizes = np.array([entry.bytes for entry in found.values()], np.int64)
    return ObjectTable(list(found), sizes, as_words([entry.locator for entry in found.values()]))


def list_store(store: Store) -> ObjectTable:
    """A local folder by the compiled call, where there is one."""
    if not isinstance(store, FolderStore):
        return as_table(store.entries())
    folders = list(store.listed(_list_compiled if native is not None and CAN_DIGEST else list_in_python))
    names = [name for folder in folders for name in folder.names]
    sizes = np.frombuffer(b"".join(folder.sizes for folder in folders), np.int64)
    return ObjectTable(names, sizes, as_words([folder.locators for folder in folders]))


def _list_compiled(path: str, prefix: str) -> ListedFolder:
    assert native is not None
    try:
        names, sizes, locators, folders, links = native.list_folder(path, prefix)
    except OSError as error:
        raise as_storage_error(path, error) from None
    return ListedFolder(_split_names(names), sizes, locators, _split_names(folders), _split_names(links))


def _split_names(blob: bytes) -> list[str]:
    return os.fsdecode(blob).split("\0")[:-1]
