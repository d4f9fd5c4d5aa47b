"""Members of archives as the objects of a store: read in place, by their offset, wherever the archives are."""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from flatout.errors import DataError, ObjectMissing, StorageError
from flatout.machine.files import OpenFile
from flatout.storage.archive_file import ArchiveFile
from flatout.storage.counters import StoreCounters
from flatout.storage.local import FolderStore, outside_error
from flatout.storage.locators import NO_LOCATOR
from flatout.storage.protocol import Entry, Range, Store, counters_of
from flatout.storage.zip_index import LOCAL_BYTES, STORED, data_offset, header_bytes, index_zip

MAX_INFLATED_BYTES = 2**30
"""Of one deflated member, which is held in memory whole."""
_MAX_OPEN = 64  # archives at a time: ImageNet as downloaded has a thousand
_HEADER_SLACK = 512  # extra fields of a zip's local header; a second request follows where they are longer


class Archive(NamedTuple):
    name: str  # of the object in the base store
    size: int
    locator: bytes


class Place(NamedTuple):
    """Where a member's bytes are."""

    archive: int  # of the store's archives
    offset: int
    stored_bytes: int
    bytes: int
    deflated: bool = False
    headed: bool = False  # the offset is that of a zip's local header, which was not looked at
    crc: int | None = None


@dataclass(eq=False)
class MemberStore:
    """Members under their names in `table`, and the objects of `base` that are no archives under theirs."""

    base: Store
    archives: tuple[Archive, ...]
    table: Mapping[str, Place]
    beside: tuple[Entry, ...] = ()
    url: str = ""
    _open: dict[int, OpenFile] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = self.url or self.base.url

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def origin(self) -> str:
        only = f"/{self.archives[0].name}" if len(self.archives) == 1 else ""
        return self.base.origin() + only

    def entries(self) -> Iterator[Entry]:
        for name, place in self.table.items():
            yield Entry(name, place.bytes, self._locator(place))
        yield from self.beside

    def _locator(self, place: Place) -> bytes:
        archive = self.archives[place.archive].locator
        if archive == NO_LOCATOR:
            return NO_LOCATOR
        return xxhash.xxh3_128_digest(archive + b" %d %d %d" % (place.offset, place.stored_bytes, place.bytes))

    def file(self, archive: int) -> OpenFile | None:
        """The archive itself, open; None where the kernel cannot open it."""
        opened = self._open.get(archive)
        if opened is None:
            path = self.base.local_path(self.archives[archive].name)
            if path is None:
                return None
            try:
                opened = OpenFile(path)
            except OSError as error:
                raise StorageError(f"{path} cannot be opened: {error.strerror}; was it moved?") from None
            while len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open)), None)  # closed when its last reader lets go
            self._open[archive] = opened
        return opened

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        answers: list[bytes | StorageError] = [b""] * len(ranges)
        asked, slots = [], []
        for slot, wanted in enumerate(ranges):
            place = self.table.get(wanted.name)
            asked.append(wanted if place is None else self._stretch(place, wanted))
            slots.append((slot, place, wanted))
        for (slot, place, wanted), answer in zip(slots, self.base.read_many(asked), strict=True):
            answers[slot] = answer if place is None else self._unpacked(place, wanted, answer)
        return answers

    def _stretch(self, place: Place, wanted: Range) -> Range:
        """Of the archive: the part asked for of a plain member, else the whole of it."""
        name, archive_bytes, _ = self.archives[place.archive]
        if not place.deflated and not place.headed:
            length = place.bytes - wanted.start if wanted.length is None else wanted.length
            inside = wanted.start >= 0 and 0 <= length <= place.bytes - wanted.start
            return Range(name, place.offset + wanted.start, length) if inside else Range(name, 0, 0)
        slack = LOCAL_BYTES + len(os.fsencode(wanted.name)) + _HEADER_SLACK if place.headed else 0
        return Range(name, place.offset, min(place.stored_bytes + slack, archive_bytes - place.offset))

    def _unpacked(self, place: Place, wanted: Range, data: bytes | StorageError) -> bytes | StorageError:
        what = f"{self.url}: {wanted.name!r}"
        end = place.bytes if wanted.length is None else wanted.start + wanted.length
        if not 0 <= wanted.start <= end <= place.bytes:
            return outside_error(what, wanted, place.bytes)
        if isinstance(data, StorageError) or not (place.deflated or place.headed):
            return data
        if place.headed:
            try:
                skip = header_bytes(data, what)
            except DataError as error:
                return ObjectMissing(str(error))
            data = self._after_header(place, skip, data)
        if isinstance(data, StorageError):
            return data
        whole = inflate(data, place.bytes, place.crc, what) if place.deflated else data
        return whole if isinstance(whole, StorageError) else whole[wanted.start : end]

    def _after_header(self, place: Place, skip: int, data: bytes) -> bytes | StorageError:
        if len(data) >= skip + place.stored_bytes:
            return data[skip : skip + place.stored_bytes]
        name = self.archives[place.archive].name
        return self.base.read_many([Range(name, place.offset + skip, place.stored_bytes)])[0]

    def local_path(self, name: str) -> str | None:
        return None

    def counters(self) -> StoreCounters:
        return counters_of(self.base)

    def close(self) -> None:
        self.base.close()


def inflate(data: bytes, size: int, crc: int | None, what: str) -> bytes | StorageError:
    """A deflated member, never more than the size that the directory claims; a damaged one is as good as missing."""
    if size > MAX_INFLATED_BYTES:
        return ObjectMissing(f"{what} unpacks to {size} bytes, limit {MAX_INFLATED_BYTES}; unzip it, use the folder")
    try:
        whole = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error:
        return ObjectMissing(f"{what} cannot be inflated: it was damaged; download the archive again")
    if len(whole) != size or (crc is not None and zlib.crc32(whole) != crc):
        return ObjectMissing(f"{what} does not match its checksum in the zip; download the archive again")
    return whole


def open_zip(base: Store, name: str, size: int, locator: bytes) -> MemberStore:
    """The files in a zip. Where the kernel reads it, each local header is looked at now, so that stored members are
    read like those of a tar; a remote one is asked for when its member is."""
    file = ArchiveFile(base, name, size)
    local = base.local_path(name) is not None
    table = {}
    for each, member in index_zip(file).items():
        offset = data_offset(file, member, each) if local else member.offset
        if local and offset + member.stored_bytes > size:
            raise DataError(f"{file.where}: {each!r} ends beyond the archive's {size} bytes; download it again")
        deflated = member.method != STORED
        table[each] = Place(0, offset, member.stored_bytes, member.bytes, deflated, not local, member.crc)
    return MemberStore(base, (Archive(name, size, locator),), table, url=file.where)


def open_local_zip(path: str) -> MemberStore:
    folder, name = os.path.split(os.path.abspath(path))
    store = FolderStore(folder)
    entry = store.entry(name)
    return open_zip(store, name, entry.bytes, entry.locator)
