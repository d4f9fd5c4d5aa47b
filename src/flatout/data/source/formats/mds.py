"""Mosaic Data Shards (version 2), read in place: an index.json for each split, and uncompressed shards.

A shard is the number of samples, the offsets of all of them and of their end as 32-bit numbers, and the samples: the
sizes of the columns that have no fixed one, then the columns one after the other.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flatout.data.source.formats.arrangement import Arrangement, Listing, Members, OpenArchive, open_archive, split_of
from flatout.data.source.formats.numbered import class_names, listed_classes
from flatout.data.source.formats.tables import LABEL_COLUMNS
from flatout.data.source.layouts import Layout
from flatout.errors import BadFile, DataError
from flatout.untrusted import blamed_as, check_shape, parse_json

INDEX = "index.json"
_IMAGE_ENCODINGS = ("jpeg", "png", "bytes")
_BITS = (8, 16, 32, 64)
_NUMBERS = {"int": "<i8"} | {f"int{n}": f"<i{n // 8}" for n in _BITS} | {f"uint{n}": f"<u{n // 8}" for n in _BITS}
_COLUMNS = {"column_names": ["text"], "column_encodings": ["text"], "column_sizes": ["count"]}
_HEAD_BYTES = 256  # of a sample: enough for the sizes of 60 columns
_ENDINGS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}


def ending_of(start: bytes) -> str:
    """Of a file's name, by its first bytes."""
    return next((ending for magic, ending in _ENDINGS.items() if start.startswith(magic)), "")


@dataclass(frozen=True)
class ShardColumns:
    """Which column is the image and which the class, and the fixed sizes (0: each sample has its own)."""

    image: int
    label: int
    label_encoding: str
    sizes: tuple[int, ...]


def indexes_of(listing: Listing) -> dict[str, str]:
    """Split -> name of its index.json."""
    found = [name for name in listing.telling if posixpath.basename(name) == INDEX and name.count("/") <= 1]
    if INDEX in found:
        return {"train": INDEX}
    by_split = {}
    for name in sorted(found):
        split = split_of(posixpath.dirname(name))
        if split is not None and (split not in by_split or posixpath.dirname(name) != "test"):
            by_split[split] = name
    return by_split


def arrange_mds(listing: Listing, indexes: dict[str, str]) -> Arrangement:
    members, layout = Members(listing), Layout("")
    found = [
        (split, place)
        for split, index in indexes.items()
        for shard in _shards(listing, index)
        for place in _samples(listing, posixpath.dirname(index), shard)
    ]
    numbers = [label for _, (_, _, _, label, _) in found if isinstance(label, int)]
    source, names = listed_classes(listing)
    call = class_names(numbers, names, source, listing.where) if len(numbers) == len(found) else None
    for split, (archive, offset, size, label, name) in found:
        prefix = f"{split}/" if len(indexes) > 1 else ""
        text = call(label) if call and isinstance(label, int) else str(label)
        members.put(f"{prefix}{name}", archive, offset, size)
        layout.splits.setdefault(split, {}).setdefault(text, []).append(f"{prefix}{name}")
    if not layout.splits.get("train"):
        raise DataError(f"{listing.where} has no training samples: {', '.join(indexes.values())} name none")
    return members.arranged(layout, (f"{listing.where}: {len(found)} samples of MDS shards",))


def _shards(listing: Listing, index: str) -> list[dict[str, object]]:
    try:
        whole = parse_json(listing.text(index), index)
        shards = whole["shards"] if whole["version"] == 2 else None
        if not isinstance(shards, list) or not all(isinstance(shard, dict) for shard in shards):
            raise TypeError("shards")
    except (BadFile, KeyError, TypeError):
        raise DataError(f"{index} of {listing.where} is not an index of MDS shards of version 2") from None
    return shards


def _columns(shard: dict[str, object], wanted: str | None, where: str) -> ShardColumns:
    with blamed_as(DataError):
        check_shape(shard, _COLUMNS, where)
    names, encodings, sizes = (shard.get(name) for name in _COLUMNS)
    if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
        raise DataError(f"{where} does not say its columns; write it again with MDSWriter")
    if not len(names) == len(encodings) == len(sizes) <= _HEAD_BYTES // 4:
        raise DataError(f"{where} has {len(names)} columns, limit {_HEAD_BYTES // 4}")
    listed = ", ".join(f"{name}: {kind}" for name, kind in zip(names, encodings, strict=True))[:200]
    image = [number for number, kind in enumerate(encodings) if kind in _IMAGE_ENCODINGS]
    named = [wanted] if wanted else list(LABEL_COLUMNS)
    label = [names.index(each) for each in named if each in names]
    if not image or not label or encodings[label[0]] not in ("str", *_NUMBERS):
        missing = f"image ({', '.join(_IMAGE_ENCODINGS)})" if not image else "class (int or str, called label)"
        raise DataError(f"{where} has the columns {listed}, and no {missing}; name the class with data.label_column")
    return ShardColumns(image[0], label[0], str(encodings[label[0]]), tuple(int(size or 0) for size in sizes))


Found = tuple[OpenArchive, int, int, int | str, str]


def _samples(listing: Listing, folder: str, shard: dict[str, object]) -> Iterator[Found]:
    raw = shard.get("raw_data")
    base = raw.get("basename") if isinstance(raw, dict) else None
    name = posixpath.normpath(posixpath.join(folder, base)) if isinstance(base, str) else ""
    where = f"{name} of {listing.where}"
    columns = _columns(shard, listing.label_column, where)
    if name not in listing.entries:
        packed = shard.get("compression")
        why = f"it is compressed ({packed}): decompress the shards first" if packed else "copy it again"
        raise DataError(f"{where} is not there; {why}")
    archive = open_archive(listing.store, listing.entries[name])
    bounds = _bounds(archive, listing.entries[name].bytes, where)
    stem = posixpath.splitext(str(base))[0]
    for number in range(len(bounds) - 1):
        yield _sample(archive, columns, bounds[number], bounds[number + 1], f"{stem}/{number:06d}")


def _bounds(archive: OpenArchive, size: int, where: str) -> list[int]:
    (count,) = np.frombuffer(archive.file.read_at(4, 0).ljust(4, b"\0"), "<u4").tolist()
    if 8 + 4 * count > size:
        raise DataError(f"{where} has {size} bytes, which does not fit {count} samples; copy it again")
    bounds = np.frombuffer(archive.file.read_at(4 * (count + 1), 4), "<u4").astype(np.int64)
    if len(bounds) and (bool((np.diff(bounds) < 0).any()) or bounds[-1] > size or bounds[0] < 8 + 4 * count):
        raise DataError(f"{where} points outside of itself; it was damaged, copy it again")
    return [int(each) for each in bounds]


def _sample(archive: OpenArchive, columns: ShardColumns, begin: int, end: int, name: str) -> Found:
    """Where the image is, and the class; only the sizes, the class and the image's first bytes are read."""
    head = archive.file.read_at(min(_HEAD_BYTES, end - begin), begin)
    free = columns.sizes.count(0)
    own = iter(np.frombuffer(head[: 4 * free].ljust(4 * free, b"\0"), "<u4").tolist())
    lengths = [size or next(own) for size in columns.sizes]
    starts = (begin + 4 * free + np.concatenate([[0], np.cumsum(lengths)])).tolist()
    if starts[-1] != end:
        raise DataError(f"{archive.file.where}: the sample at byte {begin} does not fit its columns; copy it again")
    label = archive.file.read_at(min(lengths[columns.label], 4096), starts[columns.label])
    value: int | str
    if columns.label_encoding == "str":
        value = label.decode("utf-8", "replace")
    else:
        kind = np.dtype(_NUMBERS[columns.label_encoding])
        if len(label) != kind.itemsize:
            raise DataError(
                f"{archive.file.where}: the sample at byte {begin} has {len(label)} bytes of its class, and "
                f"{columns.label_encoding} has {kind.itemsize}; write it again with MDSWriter"
            )
        value = int(np.frombuffer(label, kind)[0])
    at, size = starts[columns.image], lengths[columns.image]
    ending = ending_of(archive.file.read_at(min(8, size), at))
    return archive, at, size, value, name + ending
