"""Every object of a store as arrays; where code is compiled, without a Python object for each file of a folder."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.decode import native
from flatout.data.source.identity import CAN_DIGEST, Words, as_words
from flatout.data.source.layouts import Folders, by_folder, folder_of, without_hidden
from flatout.storage.local import FolderStore, ListedFolder, as_storage_error, list_in_python
from flatout.storage.protocol import Entry, Store


@dataclass(frozen=True, eq=False)
class ObjectTable(Mapping[str, Entry]):
    """One row for each object, folder by folder; an entry is made when it is asked for by its name."""

    folders: Folders
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
    def names(self) -> list[str]:
        return list(chain.from_iterable(self.folders.values()))

    @cached_property
    def visible(self) -> Folders:
        return without_hidden(self.folders)

    @cached_property
    def rows(self) -> dict[str, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    def rows_of(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Whole folders in the order of the table, as classes mostly are, are found without a look-up of each name."""
        ends = dict(zip(self.folders, accumulate(map(len, self.folders.values())), strict=True))
        found, at = [np.zeros(0, np.int64)], 0
        while at < len(names):
            members = self.folders.get(folder := folder_of(names[at]), [])
            if not members or list(names[at : at + len(members)]) != members:
                return np.array([self.rows[name] for name in names], np.int64)
            found.append(np.arange(ends[folder] - len(members), ends[folder]))
            at += len(members)
        return np.concatenate(found)


def as_table(entries: Iterable[Entry]) -> ObjectTable:
    by_name = {entry.name: entry for entry in entries}
    folders = by_folder(by_name)
    found = [by_name[name] for name in chain.from_iterable(folders.values())]
    sizes = np.array([entry.bytes for entry in found], np.int64)
    return ObjectTable(folders, sizes, as_words([entry.locator for entry in found]))


def list_store(store: Store) -> ObjectTable:
    """A local folder by the compiled call, where there is one."""
    if not isinstance(store, FolderStore):
        return as_table(store.entries())
    listed = store.listed(_list_compiled if native is not None and CAN_DIGEST else list_in_python)
    found = [each for each in listed if each.names]
    folders = {folder_of(each.names[0]): each.names for each in found}
    sizes = np.frombuffer(b"".join(each.sizes for each in found), np.int64)
    return ObjectTable(folders, sizes, as_words([each.locators for each in found]))


def _list_compiled(path: str, prefix: str) -> ListedFolder:
    assert native is not None
    try:
        names, sizes, locators, folders, links = native.list_folder(path, prefix)
    except OSError as error:
        raise as_storage_error(path, error) from None
    return ListedFolder(_split_names(names), sizes, locators, _split_names(folders), _split_names(links))


def _split_names(blob: bytes) -> list[str]:
    return os.fsdecode(blob).split("\0")[:-1]
