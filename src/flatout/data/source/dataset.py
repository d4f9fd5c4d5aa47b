"""A dataset: what its samples are, in a fixed order, and how to read them."""

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.array_file import Arrays, pack_names, unpack_names
from flatout.data.source.class_checks import compare_class_maps, refuse_empty_classes
from flatout.data.source.identity import Origins, Words, are_known, as_words
from flatout.data.source.layouts import (
    ANNOTATIONS,
    BY_FOLDERS,
    Layout,
    canonical,
    find_layout,
    users_layout,
)
from flatout.data.source.pack import open_split, read_manifest
from flatout.data.source.readers import ObjectReader, Reader, Source, look_at_files, read_source, store_counters
from flatout.data.source.saved_index import LEAST_FILES, load_index, save_index
from flatout.errors import DataChanged, DataError, ObjectMissing, StorageError
from flatout.sampling import uniforms
from flatout.storage import is_fuse_mount, open_checked
from flatout.storage.counters import StoreCounters
from flatout.storage.local import FolderStore
from flatout.storage.protocol import Entry, Range, Store

if TYPE_CHECKING:  # not for workers: see views.py
    from flatout.config.schema import DataConfig


_SHOWN = 3  # of the names of files that changed


@dataclass(frozen=True)
class Split:
    """Samples in a fixed order: the sample id is the position. Sorted by class, then by name as bytes."""

    names: tuple[str, ...]  # relative to the dataset's root
    labels: NDArray[np.int64]
    lengths: NDArray[np.int64]  # bytes of each original file
    reader: Reader
    rows: NDArray[np.int64]  # where each sample is in the reader
    origins: Origins = field(default_factory=Origins, compare=False, repr=False)  # by row, as the reader

    def __len__(self) -> int:
        return len(self.names)

    def name(self, sample_id: int) -> str:
        return self.names[sample_id]

    @property
    def total_bytes(self) -> int:
        return int(self.lengths.sum())

    def locate(self, ids: NDArray[np.int64]) -> Sequence[Source | StorageError]:
        return self.reader.locate(self.rows[ids])

    def shapes(self, ids: NDArray[np.int64]) -> NDArray[np.int32] | None:
        return self.reader.shapes(self.rows[ids])

    def read(self, ids: NDArray[np.int64]) -> list[bytes | memoryview | StorageError]:
        """The bytes themselves, whatever kind of source they come from."""
        return [read_source(source) for source in self.locate(ids)]

    def take(self, ids: NDArray[np.int64], labels: NDArray[np.int64] | None = None) -> "Split":
        """Another split of these samples, renumbered in this order."""
        names = tuple(self.names[i] for i in ids.tolist())
        kept = self.labels[ids] if labels is None else labels
        return Split(names, kept, self.lengths[ids], self.reader, self.rows[ids], self.origins)

    def fingerprint(self, classes: Sequence[str]) -> str:
        """By names and sizes: the same for a folder, a tar, a bucket or a pack of it, and for other contents of equal
        sizes. It says that two datasets differ, never that they are the same."""
        digest = hashlib.sha256()
        for name in classes:
            digest.update(canonical(name) + b"\0")
        for name, label, length in zip(self.names, self.labels.tolist(), self.lengths.tolist(), strict=True):
            digest.update(b"%d %d " % (label, length) + canonical(name) + b"\0")
        return digest.hexdigest()

    def content_fingerprint(self, classes: Sequence[str]) -> str | None:
        """By names, labels and contents, wherever they are; None until every sample was read."""
        digests = self.known_digests()
        if not bool(are_known(digests).all()):
            return None
        digest = hashlib.sha256(b"".join(canonical(name) + b"\0" for name in (*classes, "", *self.names)))
        digest.update(self.labels.astype("<i8").tobytes() + digests.tobytes())
        return digest.hexdigest()

    def known_digests(self) -> Words:
        """Of the original files, all zeros for those that nobody read."""
        return self.origins.digests[self.rows] if len(self.origins.digests) else np.zeros((len(self), 2), np.uint64)

    def known_digests_of(self, ids: NDArray[np.int64]) -> Words:
        known = self.origins.digests
        return known[self.rows[ids]] if len(known) else np.zeros((len(ids), 2), np.uint64)

    def known_locators(self) -> Words:
        return self.origins.locators[self.rows] if len(self.origins.locators) else np.zeros((len(self), 2), np.uint64)

    def record(self, ids: NDArray[np.int64], digests: Words) -> None:
        """What was read of these samples. Other bytes than those before are refused, unless changes are accepted."""
        origins, differs = self.origins, self.origins.note(self.rows[ids], digests)
        if differs is None:
            return
        changed = ids[differs]
        if not origins.accepts_changes:
            files = some_files([self.names[i] for i in changed.tolist()], " changed")
            raise DataChanged(
                f"{files}: the bytes are not those that were read before, and the run would train on both; "
                "restore them, or go on with --accept-changed-data"
            )
        for sample_id, digest in zip(changed.tolist(), digests[differs], strict=True):
            origins.accept(self.names[sample_id], int(self.rows[sample_id]), digest.tobytes())

    def origin_digest(self) -> str:
        """Equal ones prove equal bytes of all samples; one of which too little is known is equal to no other."""
        digest = hashlib.sha256(self.fingerprint(()).encode())
        proofs = self.known_locators()
        digest.update(proofs.tobytes() if bool(are_known(proofs).all()) else secrets.token_bytes(32))
        return digest.hexdigest()

    def storage_key(self) -> str:
        """Names what is kept of these samples on local disk, by row. What is found there is used only for rows whose
        locator is still the same; the place is among it so that two datasets of equal names do not take turns.
        """
        where = self.origins.place.encode("utf-8", "surrogateescape")
        names = self.fingerprint(()).encode()
        return hashlib.sha256(b"2\0" + where + b"\0" + names + self.rows.astype("<i8").tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class Dataset:
    """Training and validation samples with one class map."""

    url: str
    classes: tuple[str, ...]
    train: Split
    val: Split | None
    notes: tuple[str, ...] = ()
    _content: dict[int, str] = field(default_factory=dict, init=False, compare=False, repr=False)  # once it is known

    @cached_property
    def fingerprint(self) -> str:
        parts = [split.fingerprint(self.classes) if split else "-" for split in (self.train, self.val)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]

    def content_fingerprint(self) -> str | None:
        """The same for a folder, a tar, a bucket and a pack of the same files; None until every sample was read."""
        accepted = len(self.changed_names())  # each of them changes it
        if accepted in self._content:
            return self._content[accepted]
        parts = [split.content_fingerprint(self.classes) if split else "-" for split in (self.train, self.val)]
        if None in parts:
            return None
        self._content[accepted] = hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:32]
        return self._content[accepted]

    def changed_names(self) -> tuple[str, ...]:
        """Of samples that changed while they were in use, and were accepted."""
        return tuple({name: 0 for split in (self.train, self.val) if split for name in split.origins.changed})

    @property
    def total_bytes(self) -> int:
        return sum(split.total_bytes for split in (self.train, self.val) if split)

    def store_counters(self) -> StoreCounters:
        return store_counters(self.train.reader)


def open_dataset(config: "DataConfig") -> Dataset:
    """List the store, find the layout, compare the class maps, apply the limits of the configuration."""
    if not config.path:
        raise DataError("data.path is not set; give a folder, a .tar or a URL, for example --set data.path=data/shapes")
    store = open_checked(config.path)
    manifest = read_manifest(store)
    dataset = (
        _from_files(store, config.path, config.layout) if manifest is None else _from_pack(store, manifest, config.path)
    )
    dataset = _limited(dataset, config)
    return dataset if dataset.val is not None else _held_out(dataset, config.holdout)


def _from_files(store: Store, path: str, finder: str) -> Dataset:
    root = _indexed_root(store) if finder == BY_FOLDERS else None  # the index of a folder is of its own layout
    saved = load_index(root) if root is not None else None
    if saved is not None and isinstance(store, FolderStore):
        with suppress(ObjectMissing):  # a file that is gone, under a folder that kept its time: listed again
            return _from_saved(store, path, saved)
    listed_ns = time.time_ns()
    entries = {entry.name: entry for entry in store.entries()}
    lengths = {name: entry.bytes for name, entry in entries.items()}

    def read_text(name: str) -> str:
        return _read_text(store, name)

    if finder == BY_FOLDERS:
        layout = find_layout(lengths, read_text, path)
        refuse_empty_classes(store, layout, path)
    else:
        layout = users_layout(finder, lengths, read_text, path)
    classes = sorted(layout.splits["train"], key=canonical)
    train = _split(store, layout, "train", classes, entries)
    val = _split(store, layout, "val", classes, entries) if "val" in layout.splits else None
    notes = tuple(f"{name}/ in {path} holds no images and is no class" for name in layout.without_images)
    dataset = Dataset(path, tuple(classes), train, val, notes)
    if root is not None and len(lengths) >= LEAST_FILES:
        annotations = [os.path.join(root, name) for name in lengths if name.endswith(f"/{ANNOTATIONS}")]
        with suppress(OSError):  # a folder that is gone again: listed next time
            save_index(root, [*_folders(root, lengths), *annotations], _index(dataset, layout.root), listed_ns)
    return dataset


def _indexed_root(store: Store) -> str | None:
    """The folder whose index may be kept; a mounted bucket does not change a folder's time when objects are added."""
    root = store.local_path("")
    return None if root is None or (is_fuse_mount(root) or "").startswith("fuse") else os.path.realpath(root)


def _folders(root: str, names: Iterable[str]) -> list[str]:
    """Every folder in which a file could appear: those above the files, and folders that are still empty."""
    found = {""}
    for name in {os.path.dirname(name) for name in names}:
        while name not in found:
            found.add(name)
            name = os.path.dirname(name)
    waiting = list(found)
    while waiting:
        above = waiting.pop()
        for item in os.scandir(os.path.join(root, above)):
            name = os.path.join(above, item.name)
            if name not in found and item.is_dir(follow_symlinks=False):
                found.add(name)
                waiting.append(name)
    return [os.path.join(root, name) for name in sorted(found)]


def _index(dataset: Dataset, root: str) -> Arrays:
    arrays: Arrays = {"root": pack_names([root]), "classes": pack_names(dataset.classes)}
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        if split is not None:
            arrays[f"{name}.names"] = pack_names(split.names)
            arrays[f"{name}.labels"] = split.labels
    return arrays


def _from_saved(store: FolderStore, path: str, saved: Arrays) -> Dataset:
    (root,) = unpack_names(saved["root"])

    def split(name: str) -> Split:
        names = tuple(unpack_names(saved[f"{name}.names"]))
        objects = tuple(root + each for each in names) if root else names
        lengths, locators = look_at_files(store, objects)  # not in the index: a file may have changed in place
        reader = ObjectReader(store, objects, lengths)
        return Split(
            names, saved[f"{name}.labels"], lengths, reader, np.arange(len(names)), _origins(store, name, locators)
        )

    val = split("val") if "val.names" in saved else None
    return Dataset(path, tuple(unpack_names(saved["classes"])), split("train"), val)


def _from_pack(store: Store, manifest: Mapping[str, Any], path: str) -> Dataset:
    def split(name: str) -> Split:
        opened = open_split(store, manifest, name)
        arrays, count = opened.index.arrays, len(opened.index)
        return Split(
            opened.index.names,
            arrays["label"].astype(np.int64),
            arrays["original_length"].astype(np.int64),
            opened.reader,
            np.arange(count),
            opened.reader.origins(f"{store.origin()} {name}"),
        )

    splits = {name: split(name) for name in manifest["splits"]}
    dataset = Dataset(path, tuple(manifest["classes"]), splits["train"], splits.get("val"))
    if dataset.fingerprint != manifest["fingerprint"]:
        raise DataError(f"{path} does not have the fingerprint its manifest names; it was changed, pack it again")
    return dataset


def _read_text(store: Store, name: str) -> str:
    (answer,) = store.read_many([Range(name)])
    if isinstance(answer, StorageError):
        raise answer
    return answer.decode("utf-8", "surrogateescape")


def _split(store: Store, layout: Layout, split: str, classes: list[str], entries: dict[str, Entry]) -> Split:
    members = layout.splits[split]
    if split == "val":
        compare_class_maps(classes, sorted(members, key=canonical), store.url)
    names, labels = [], []
    for label, name in enumerate(classes):
        ordered = sorted(members[name], key=canonical)
        names += ordered
        labels += [label] * len(ordered)
    objects = tuple(layout.root + name for name in names)
    sizes = np.array([entries[name].bytes for name in objects], np.int64)
    reader = ObjectReader(store, objects, sizes)
    origins = _origins(store, split, as_words([entries[name].locator for name in objects]))
    return Split(tuple(names), np.array(labels, np.int64), sizes, reader, np.arange(len(names)), origins)


def _origins(store: Store, split: str, locators: Words) -> Origins:
    origins = Origins(f"{store.origin()} {split}", locators)
    origins.recall()
    return origins


def some_files(names: Sequence[str], what: str) -> str:
    """`3 files changed (train/cat/7.jpg, train/cat/8.jpg, …)`."""
    shown = ", ".join([*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])])
    return f"{len(names):,} file{'s' if len(names) != 1 else ''}{what} ({shown})"


def _limited(dataset: Dataset, config: "DataConfig") -> Dataset:
    """Apply `classes` and `samples_per_class`; labels are renumbered from 0 in order of class name."""
    if config.classes is None and config.samples_per_class is None:
        return dataset
    kept = _kept_classes(dataset.classes, config.classes)
    renumbered = np.full(len(dataset.classes), -1, np.int64)
    renumbered[[dataset.classes.index(name) for name in kept]] = np.arange(len(kept))

    def narrow(split: Split, most: int | None) -> Split:
        labels = renumbered[split.labels]
        ids = np.flatnonzero(labels >= 0)
        if most is not None:
            ids = np.concatenate([ids[labels[ids] == label][:most] for label in range(len(kept))])
        ids = ids[np.argsort(labels[ids], kind="stable")]
        return split.take(ids, labels[ids])

    val = narrow(dataset.val, None) if dataset.val else None
    return Dataset(dataset.url, tuple(kept), narrow(dataset.train, config.samples_per_class), val, dataset.notes)


def _kept_classes(known: tuple[str, ...], wanted: int | list[str] | None) -> list[str]:
    if isinstance(wanted, list):
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise DataError(f"data.classes names {unknown[0]!r}, which is not among the {len(known)} classes")
        if not wanted:
            raise DataError(
                f"data.classes is an empty list; name some of the {len(known)} classes, or use null for all"
            )
        return sorted(set(wanted), key=canonical)
    if wanted is not None and wanted > len(known):
        raise DataError(f"data.classes is {wanted} but the dataset has {len(known)}; set it to at most {len(known)}")
    return list(known[:wanted])


def _held_out(dataset: Dataset, share: float) -> Dataset:
    """Hold out the same samples every time: of every class that has two or more, at least one, never all."""
    ids, labels = np.arange(len(dataset.train)), dataset.train.labels
    dice = uniforms(0, 0, ids, 0xFF, 1)[:, 0]
    chosen = np.zeros(len(ids), bool)
    for label in range(len(dataset.classes)):
        members = ids[labels == label]
        count = min(max(1, round(share * len(members))), len(members) - 1)
        chosen[members[np.argsort(dice[members], kind="stable")][: max(0, count)]] = True
    if not chosen.any():
        return dataset
    note = f"no val split in {dataset.url}: held out {int(chosen.sum())} of {len(ids)} samples for validation"
    train, val = dataset.train.take(ids[~chosen]), dataset.train.take(ids[chosen])
    return Dataset(dataset.url, dataset.classes, train, val, (*dataset.notes, note))
