"""What a layout comes to: a store whose objects are the samples, and which of them are of which class and split."""

import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from flatout.data.source.array_file import Arrays, pack_names, read_arrays, unpack_names, write_arrays
from flatout.data.source.layouts import Layout
from flatout.data.source.listing import ObjectTable, list_store
from flatout.errors import DataError
from flatout.machine.budgets import cache_folder
from flatout.storage.archive_file import ArchiveFile
from flatout.storage.local import FolderStore, TarStore
from flatout.storage.locators import NO_LOCATOR
from flatout.storage.members import Archive, MemberStore, Place
from flatout.storage.protocol import Entry, Store, read_one
from flatout.storage.tar_index import scan_tar

MAX_TEXT_BYTES = 2**30
"""Of a table: ten million rows with long names."""
_REMEMBERED = 2_000  # members from which on an index is kept: below that scanning takes a moment
_AT_ONCE = 16  # remote archives whose headers are read at a time
_TELLING = (".csv", ".tsv", ".jsonl", ".parquet", ".tar", ".mds", ".cls", ".json")
_TELLING_CHARACTERS = min(map(len, _TELLING))
_TELLING_ENDS = {ending[-_TELLING_CHARACTERS:] for ending in _TELLING}
_SPLITS = {"train": "train", "training": "train"} | dict.fromkeys(("val", "valid", "validation", "dev", "test"), "val")
_SPLIT_NAME = re.compile(r"(?:^|/)(train|training|val|valid|validation|dev|test)(?=[-_./]|$)", re.I)


@dataclass
class Arrangement:
    """`layout` names samples; their objects are in `store`, as listed in `entries`."""

    store: Store
    entries: ObjectTable
    layout: Layout
    notes: tuple[str, ...] = ()
    digests: Mapping[str, bytes] = field(default_factory=dict)  # of objects that were read already
    kind: str = ""  # which of the layouts it is


@dataclass(frozen=True)
class Listing:
    """All objects of a store, and what was asked of them."""

    store: Store
    entries: ObjectTable
    where: str
    label_column: str | None = None
    only: str | None = None  # the one table that data.path points at

    def names_text(self, name: str) -> str:
        """The same of a file of names, which need not be text, as those of files."""
        return self.text(name, "surrogateescape")

    @cached_property
    def telling(self) -> list[str]:
        """Those that may hold samples or say their classes, by their endings; few or none beside images."""
        found: list[str] = []
        for names in self.entries.visible.values():
            ends = {name[-_TELLING_CHARACTERS:] for name in names}  # few, and cheaper than a look at every ending
            if any(end.lower() in _TELLING_ENDS for end in ends):
                found += [name for name in names if name.lower().endswith(_TELLING)]
        return found

    def archives(self, ending: str) -> list[str]:
        """Those of a format, without a test split where there is one for validation; or the one asked for."""
        if self.only is not None:
            return [self.only]
        return without_test(name for name in self.telling if name.lower().endswith(ending))

    def text(self, name: str, errors: str = "strict") -> str:
        """The contents of a text file; its size is looked at first."""
        size = self.entries[name].bytes
        if size > MAX_TEXT_BYTES:
            raise DataError(f"{name} in {self.where} has {size} bytes, limit {MAX_TEXT_BYTES}; split it")
        try:
            return read_one(self.store, name).decode("utf-8-sig", errors)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name} in {self.where} is not UTF-8 text (byte {error.start}); save it as UTF-8"
            ) from None

    def visible(self) -> list[str]:
        return list(chain.from_iterable(self.entries.visible.values()))


def split_of(word: str) -> str | None:
    """train or val, by any of the words that people use for them."""
    return _SPLITS.get(word.strip().lower())


def split_in_name(name: str) -> str | None:
    """Of an archive such as train-00000-of-00005.parquet or val/00001.tar; None where its name does not say."""
    found = _SPLIT_NAME.findall(name)
    return _SPLITS[found[-1].lower()] if found else None


def without_test(names: Iterable[str]) -> list[str]:
    """Archives of a test split are left out where there is one for validation."""
    names = sorted(names)
    words = {name: [word.lower() for word in _SPLIT_NAME.findall(name)][-1:] for name in names}
    if any(word and _SPLITS[word[0]] == "val" and word != ["test"] for word in words.values()):
        return [name for name in names if words[name] != ["test"]]
    return names


@dataclass(frozen=True)
class OpenArchive:
    """A tar, which may be a member of another, and the object of the base store that it lies in."""

    file: ArchiveFile
    outer: Archive

    def within(self, offset: int, size: int) -> "OpenArchive":
        """An archive inside of this one; `offset` as `members` gives it."""
        return OpenArchive(self.file.within(offset - self.file.start, size), self.outer)

    def members(self) -> dict[str, tuple[int, int]]:
        """Name -> offset in the outer object, and length."""
        start = self.file.start
        return {name: (start + offset, size) for name, (offset, size) in _scanned(self).items()}

    def read(self, offset: int, size: int) -> bytes:
        return self.file.read_at(size, offset - self.file.start)


def open_archive(store: Store, entry: Entry) -> OpenArchive:
    """Of a folder or a bucket; or a member of a tar, or of a zip that stores it as it is."""
    if isinstance(store, TarStore):
        folder, name = os.path.split(os.path.abspath(store.path))
        base = FolderStore(folder)
        outer = base.entry(name)
        ((start, size),) = store.places([entry.name]) or [(0, 0)]
        return OpenArchive(ArchiveFile(base, name, size, start), Archive(name, outer.bytes, outer.locator))
    if isinstance(store, MemberStore) and (place := store.table.get(entry.name)) is not None:
        if place.deflated or place.headed:
            raise DataError(f"{entry.name} is an archive inside of {store.url}; unpack it, and use the folder")
        archive = store.archives[place.archive]
        return OpenArchive(ArchiveFile(store.base, archive.name, place.bytes, place.offset), archive)
    return OpenArchive(ArchiveFile(store, entry.name, entry.bytes), Archive(entry.name, entry.bytes, entry.locator))


class Members:
    """Collects members of archives of one store, under the names of samples."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._base: Store = listing.store
        self._archives: dict[Archive, int] = {}
        self.table: dict[str, Place] = {}

    def opened(self, names: Iterable[str]) -> list[tuple[OpenArchive, dict[str, tuple[int, int]]]]:
        """These tars of the listing, each with its members."""
        archives = [open_archive(self._listing.store, self._listing.entries[name]) for name in names]
        if archives and archives[0].file.store.local_path("") is None:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return list(zip(archives, pool.map(OpenArchive.members, archives), strict=True))
        return [(archive, archive.members()) for archive in archives]

    def put(self, name: str, archive: OpenArchive, offset: int, size: int) -> None:
        """A stretch of the outer object of `archive`, as the object `name`."""
        if name in self.table:
            raise DataError(f"{archive.file.where} holds {name!r} a second time; remove one of them")
        self._base = archive.file.store
        self.table[name] = Place(self._archives.setdefault(archive.outer, len(self._archives)), offset, size, size)

    def arranged(self, layout: Layout, notes: tuple[str, ...] = ()) -> Arrangement:
        """With the listing's own objects beside the members."""
        beside = tuple(entry for name, entry in self._listing.entries.items() if name not in self.table)
        url = self._listing.store.url
        if self._base is not self._listing.store:  # its objects cannot be read through the base
            beside = ()
        store = MemberStore(self._base, tuple(self._archives), self.table, beside, url)
        return Arrangement(store, list_store(store), layout, notes)


def _scanned(archive: OpenArchive) -> dict[str, tuple[int, int]]:
    """A tar that is proven the same as before is not scanned again."""
    file, locator = archive.file, archive.outer.locator
    path = cache_folder() / "index" / f"tar-{locator.hex()}-{file.start}-{file.size}.npz"
    saved = read_arrays(path) if locator != NO_LOCATOR else None
    if saved is not None:
        places = zip(saved["offset"].tolist(), saved["bytes"].tolist(), strict=True)
        return dict(zip(unpack_names(saved["names"]), places, strict=True))
    found = scan_tar(file.where, file.read_at, file.size)
    if len(found) >= _REMEMBERED and locator != NO_LOCATOR:
        table = np.array(list(found.values()), np.int64)
        arrays: Arrays = {"names": pack_names(list(found)), "offset": table[:, 0], "bytes": table[:, 1]}
        with suppress(OSError):  # a full disk, or one that may not be written: scanned again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(path, arrays)
    return found
