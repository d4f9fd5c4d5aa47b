"""Packs: the samples of a dataset in a few large files with a compact index. docs/pack-format.md is the contract.

A pack is a folder (or a prefix in an object store) of `pack.json`, one `<split>.index` and shards
`<split>-00000.data` per split. The index is read whole; samples are slices of the mapped shards, or range requests.
"""

import hashlib
import mmap
import os
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.picture_limits import MAX_PIXELS
from flatout.data.source.identity import Origins, Words, as_words, digest_of
from flatout.data.source.readers import Extents, Rows, Source
from flatout.errors import BadFile, DataError, ObjectMissing, StorageError
from flatout.storage.counters import StoreCounters
from flatout.storage.locators import NO_LOCATOR, file_locator
from flatout.storage.protocol import Range, Store, counters_of, read_one
from flatout.untrusted import parse_json

MANIFEST = "pack.json"
MODES = ("original", "resized", "decoded")
MAGIC, VERSION = b"FLATPACK", 2
_READABLE = (1, VERSION)  # version 1 has no digests of the original files, and other ones of what is stored
_HEADER = struct.Struct("<8sIIQQ32s")
_SETTLED_NANOSECONDS = 2 * 10**9
_MAX_SAMPLES, _MAX_NAME_BYTES, _MAX_SHARD_BYTES = 2**31, 4096, 2**62
_ARRAYS = (
    ("offset", "<u8"),
    ("length", "<u8"),
    ("original_length", "<u8"),
    ("name_end", "<u8"),
    ("shard", "<u4"),
    ("label", "<u4"),
    ("height", "<u4"),
    ("width", "<u4"),
    ("digest", "V16"),
)
_CONTENT = ("content", "V16")  # from version 2 on


@dataclass(frozen=True)
class PackIndex:
    """What is known of every sample of a split, as arrays in sample order."""

    mode: str
    arrays: Mapping[str, NDArray[Any]]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def version(self) -> int:
        return 2 if "content" in self.arrays else 1

    def digest_of(self, data: bytes | memoryview) -> bytes:
        """As in the array `digest`."""
        return digest_of(data) if self.version > 1 else hashlib.blake2b(data, digest_size=16).digest()


def _columns(version: int) -> tuple[tuple[str, str], ...]:
    return _ARRAYS if version == 1 else (*_ARRAYS, _CONTENT)


def encode_index(index: PackIndex) -> bytes:
    """The bytes of an index file."""
    columns = _columns(index.version)
    names = b"".join(os.fsencode(name) for name in index.names)
    body = b"".join(np.ascontiguousarray(index.arrays[name].astype(kind)).tobytes() for name, kind in columns) + names
    header = _HEADER.pack(
        MAGIC, index.version, MODES.index(index.mode), len(index), len(names), hashlib.sha256(body).digest()
    )
    return header + body


def decode_index(data: bytes, shard_bytes: Sequence[int], where: str) -> PackIndex:
    """Read an index that may be damaged or hostile: sizes are checked before anything is allocated by them."""
    if len(data) < _HEADER.size:
        raise DataError(f"{where} is not a pack index: {len(data)} bytes; pack the dataset again")
    magic, version, mode, count, name_bytes, digest = _HEADER.unpack_from(data)
    if magic != MAGIC or version not in _READABLE or mode >= len(MODES):
        raise DataError(
            f"{where} is not a pack index of a version up to {VERSION}; pack the dataset again with this flatout"
        )
    columns = _columns(version)
    row_bytes = sum(np.dtype(kind).itemsize for _, kind in columns)
    if count > _MAX_SAMPLES or len(data) != _HEADER.size + count * row_bytes + name_bytes:
        raise DataError(f"{where} has {len(data)} bytes, which does not fit {count} samples; it was cut or damaged")
    body = memoryview(data)[_HEADER.size :]
    if hashlib.sha256(body).digest() != digest:
        raise DataError(f"{where} does not match its digest; it was damaged, copy or pack it again")
    arrays, at = {}, 0
    for name, kind in columns:
        arrays[name] = np.frombuffer(body, kind, count, at)
        at += arrays[name].nbytes
    _check_ranges(arrays, shard_bytes, name_bytes, MODES[mode], where)
    return PackIndex(MODES[mode], arrays, _names(arrays["name_end"], bytes(body[at:])))


def _check_ranges(
    arrays: Mapping[str, NDArray[Any]], shard_bytes: Sequence[int], name_bytes: int, mode: str, where: str
) -> None:
    shards = np.array(shard_bytes, np.uint64)
    ends, starts = arrays["name_end"], np.concatenate([np.zeros(1, np.uint64), arrays["name_end"][:-1]])
    fine = len(arrays["shard"]) == 0 or (
        bool((arrays["shard"] < len(shards)).all())
        and bool((arrays["length"] <= 2**40).all() and (arrays["offset"] <= _MAX_SHARD_BYTES).all())
        and bool((arrays["original_length"] <= _MAX_SHARD_BYTES).all())
        and bool((arrays["offset"] + arrays["length"] <= shards[arrays["shard"]]).all())
        and bool((ends >= starts).all() and (ends - starts <= _MAX_NAME_BYTES).all() and ends[-1] == name_bytes)
    )
    if fine and mode == "decoded":
        pixels = arrays["height"].astype(np.uint64) * arrays["width"].astype(np.uint64)
        fine = bool(((pixels > 0) & (pixels <= MAX_PIXELS) & (arrays["length"] == 3 * pixels)).all())
    if not fine:
        raise DataError(f"{where} points outside its shards; it was damaged, copy or pack it again")


def _names(ends: NDArray[np.uint64], blob: bytes) -> tuple[str, ...]:
    bounds = [0, *ends.tolist()]
    return tuple(os.fsdecode(blob[low:high]) for low, high in pairwise(bounds))


@dataclass(frozen=True)
class PackReader:
    """Samples of one split: slices of mapped shards where the pack is on a local disk, else range requests."""

    store: Store
    shard_names: tuple[str, ...]
    index: PackIndex
    _maps: dict[str, memoryview] = field(default_factory=dict, compare=False, repr=False)
    _status: dict[str, os.stat_result] = field(default_factory=dict, compare=False, repr=False)
    """Of the files that are mapped: what a path leads to may be another one a moment later."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}  # mapped again in the other process

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        shards, offsets, lengths = (self.index.arrays[name][rows] for name in ("shard", "offset", "length"))
        if self.store.local_path(self.shard_names[0]) is None:
            where = zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
            return self.store.read_many([Range(self.shard_names[s], offset, length) for s, offset, length in where])
        used = np.bincount(shards, minlength=1) > 0
        which = (np.cumsum(used) - 1)[shards]  # np.unique does the same, in ten times the time
        bases = [self._mapped(shard) for shard in np.flatnonzero(used).tolist()]
        return Extents(bases, which.astype(np.int32), offsets.astype(np.int64), lengths.astype(np.int64))

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        if self.index.mode != "decoded":
            return None
        arrays = self.index.arrays
        return np.stack([arrays["height"][rows], arrays["width"][rows]], axis=1).astype(np.int32)

    def counters(self) -> StoreCounters:
        return counters_of(self.store)

    def origins(self, place: str) -> Origins:
        """From version 2 on the index proves what is stored, since every sample is compared with it when it is read."""
        arrays, originals = self.index.arrays, self.index.mode == "original"
        if self.index.version == 1:
            return Origins(place, self._shard_locators(), stores_originals=originals)
        stored = as_words(arrays["digest"])
        origins = Origins(place, stored, as_words(arrays["content"]), stored, originals, self._shard_files())
        origins.recall()
        return origins

    def _shard_files(self) -> bytes:
        """Locators of shards whose pixels are compared with the index once; empty where a change could go unseen."""
        if self.index.mode != "decoded" or any(self.store.local_path(name) is None for name in self.shard_names):
            return b""
        for number in range(len(self.shard_names)):
            self._mapped(number)
        found = [self._status[name] for name in self.shard_names]
        now = time.time_ns()
        if any(abs(now - each.st_ctime_ns) < _SETTLED_NANOSECONDS for each in found):
            return b""  # changed again within the clock's grain it would look the same
        return b"".join(map(file_locator, found))

    def _shard_locators(self) -> Words:
        """Of each sample by its shard's; unknown where the store cannot say."""
        found: dict[str, bytes] = {}
        with suppress(StorageError):
            found = {entry.name: entry.locator for entry in self.store.entries()}
        shards = [found.get(name, NO_LOCATOR) for name in self.shard_names]
        arrays = self.index.arrays
        rows = zip(arrays["shard"].tolist(), arrays["offset"].tolist(), arrays["length"].tolist(), strict=True)
        parts = ((shards[shard], b" %d %d" % (offset, length)) for shard, offset, length in rows)
        return as_words([NO_LOCATOR if of == NO_LOCATOR else digest_of(of + part) for of, part in parts])

    def _mapped(self, shard: int) -> memoryview:
        name = self.shard_names[shard]
        view = self._maps.get(name)
        if view is None:
            path = self.store.local_path(name)
            assert path is not None
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                known = self._status.setdefault(name, status)
                if file_locator(known) != file_locator(
                    status
                ):  # in a worker process, later than in the one that opened
                    raise DataError(f"{path} was replaced since the pack was opened; start again")
                empty = status.st_size == 0  # of samples without a byte, and cannot be mapped
                view = memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._maps[name] = view  # two threads may both map it: harmless
        return view


def read_manifest(store: Store) -> dict[str, Any] | None:
    """The manifest if the store holds a pack, else None."""
    path = store.local_path(MANIFEST)
    if path is not None and not os.path.exists(path):
        return None
    try:
        manifest = parse_json(bytes(read_one(store, MANIFEST)).decode(), MANIFEST)
        known = manifest["format"] == "flatout-pack" and manifest["version"] in _READABLE
    except ObjectMissing:
        return None
    except (BadFile, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise DataError(
            f"{store.url}/{MANIFEST} is not a pack manifest of a version up to {VERSION}; pack the dataset again"
        )
    classes, splits, fingerprint = (manifest.get(key) for key in ("classes", "splits", "fingerprint"))
    whole = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    if not (whole and isinstance(splits, dict) and "train" in splits and isinstance(fingerprint, str)):
        raise DataError(f"{store.url}/{MANIFEST} is damaged: classes, splits or fingerprint; pack the dataset again")
    return dict(manifest)


def open_split(store: Store, manifest: Mapping[str, Any], split: str) -> PackReader:
    """Read and verify the index of one split."""
    try:
        entry = manifest["splits"][split]
        shards = [(str(shard["name"]), int(shard["bytes"])) for shard in entry["shards"]]
        index_name = str(entry["index"])
        if not all(0 <= count <= _MAX_SHARD_BYTES for _, count in shards):
            raise ValueError("the size of a shard")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{store.url}/{MANIFEST} is damaged ({error!r}); pack the dataset again") from None
    if any("/" in name or name.startswith(".") for name in (index_name, *(name for name, _ in shards))):
        raise DataError(f"{store.url}/{MANIFEST} names files outside the pack; refusing to read it")
    try:
        data = read_one(store, index_name)
    except ObjectMissing:
        raise DataError(f"{store.url}/{index_name} is missing; copy or pack it again") from None
    _check_local_shards(store, shards)
    index = decode_index(data, [count for _, count in shards], f"{store.url}/{index_name}")
    if index.mode != manifest.get("mode") or index.arrays["label"].max(initial=0) >= max(1, len(manifest["classes"])):
        raise DataError(f"{store.url}/{index_name} does not fit {MANIFEST}; it was damaged, copy or pack it again")
    return PackReader(store, tuple(name for name, _ in shards), index)


def _check_local_shards(store: Store, shards: Sequence[tuple[str, int]]) -> None:
    """A shard shorter than the index believes would end in a SIGBUS."""
    for name, count in shards:
        path = store.local_path(name)
        if path is not None and (not os.path.exists(path) or os.path.getsize(path) != count):
            found = os.path.getsize(path) if os.path.exists(path) else "no"
            raise DataError(f"{path} should have {count} bytes but has {found}; copy or pack it again")
