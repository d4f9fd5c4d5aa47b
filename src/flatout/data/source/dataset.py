"""A dataset: what its samples are, in a fixed order, and how to read them."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.class_lists import compare_class_maps, kept_classes
from flatout.data.source.formats.arrangement import Arrangement, Listing
from flatout.data.source.formats.choose import arrange, open_source
from flatout.data.source.identity import Origins, Words, are_known, as_words
from flatout.data.source.layouts import BY_FOLDERS, all_canonical, canonical, in_order
from flatout.data.source.listing import list_store
from flatout.data.source.name_split import chosen_by_name
from flatout.data.source.pack import open_split, read_manifest
from flatout.data.source.readers import ObjectReader, Reader, Source, read_source
from flatout.errors import DataChanged, DataError, StorageError
from flatout.sampling import uniforms
from flatout.storage.counters import StoreCounters
from flatout.storage.protocol import Store

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
        rows = zip(self.labels.tolist(), self.lengths.tolist(), all_canonical(self.names), strict=True)
        told = [*(canonical(name) + b"\0" for name in classes), *map(b"%d %d %b\0".__mod__, rows)]
        return hashlib.sha256(b"".join(told)).hexdigest()

    def content_fingerprint(self, classes: Sequence[str]) -> str | None:
        """By names, labels and contents, wherever they are; None until every sample was read."""
        digests = self.known_digests()
        if not bool(are_known(digests).all()):
            return None
        digest = hashlib.sha256(b"".join(name + b"\0" for name in all_canonical([*classes, "", *self.names])))
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
        return self.train.reader.counters()


def open_dataset(config: "DataConfig") -> Dataset:
    """List the store, find the layout, compare the class maps, apply the limits of the configuration."""
    if not config.path:
        raise DataError("data.path is not set; give a folder, a .tar or a URL, for example --set data.path=data/shapes")
    store, only = open_source(config.path)
    manifest = read_manifest(store) if only is None else None
    dataset = _from_files(store, only, config) if manifest is None else _from_pack(store, manifest, config.path)
    dataset = _limited(dataset, config)
    if config.split is not None:
        return split_by_name(dataset, config.split)
    return dataset if dataset.val is not None else _held_out(dataset, config.holdout)


def _from_files(store: Store, only: str | None, config: "DataConfig") -> Dataset:
    """`only` is the table that the path points at."""
    found = arrange(Listing(store, list_store(store), config.path, config.label_column, only), config.layout)
    classes = sorted(found.layout.splits["train"], key=canonical)
    train = _split(found, "train", classes)
    val = _split(found, "val", classes) if "val" in found.layout.splits else None
    return Dataset(config.path, tuple(classes), train, val, found.notes)


def _from_pack(store: Store, manifest: Mapping[str, Any], path: str) -> Dataset:
    splits = pack_splits(store, manifest)
    dataset = Dataset(path, tuple(manifest["classes"]), splits["train"], splits.get("val"))
    if dataset.fingerprint != manifest["fingerprint"]:
        raise DataError(f"{path} does not have the fingerprint its manifest names; it was changed, pack it again")
    return dataset


def pack_splits(store: Store, manifest: Mapping[str, Any]) -> dict[str, Split]:
    """Of the pack that the store holds."""
    readers = {name: open_split(store, manifest, name) for name in manifest["splits"]}
    return {
        name: Split(
            reader.index.names,
            reader.index.arrays["label"].astype(np.int64),
            reader.index.arrays["original_length"].astype(np.int64),
            reader,
            np.arange(len(reader.index)),
            reader.origins(f"{store.origin()} {name}"),
        )
        for name, reader in readers.items()
    }


def _split(found: Arrangement, split: str, classes: list[str]) -> Split:
    if split == "val":
        there = sorted(found.layout.splits[split], key=canonical)
        compare_class_maps(classes, there, found.store.url, found.kind == BY_FOLDERS)
    samples = arranged_split(found, split, classes)
    samples.origins.recall()
    if found.digests:
        samples.origins.digests = as_words([found.digests[name] for name in found.layout.objects_of(samples.names)])
    return samples


def arranged_split(found: Arrangement, split: str, classes: Sequence[str]) -> Split:
    """The samples of these classes in their order."""
    members, store = found.layout.splits[split], found.store
    ordered = [in_order(members.get(name, ())) for name in classes]
    names = tuple(chain.from_iterable(ordered))
    labels = np.repeat(np.arange(len(classes)), [len(each) for each in ordered])
    objects = found.layout.objects_of(names)
    rows = found.entries.rows_of(objects)
    sizes, origins = found.entries.sizes[rows], Origins(f"{store.origin()} {split}", found.entries.locators[rows])
    return Split(names, labels, sizes, ObjectReader(store, objects, sizes), np.arange(len(names)), origins)


def some_files(names: Sequence[str], what: str) -> str:
    """`3 files changed (train/cat/7.jpg, train/cat/8.jpg, …)`."""
    shown = ", ".join([*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])])
    return f"{len(names):,} file{'s' if len(names) != 1 else ''}{what} ({shown})"


def _limited(dataset: Dataset, config: "DataConfig") -> Dataset:
    """Apply `classes` and `samples_per_class`; labels are renumbered from 0 in order of class name."""
    if config.classes is None and config.samples_per_class is None:
        return dataset
    kept, notes = kept_classes(dataset.classes, config.classes, config.unlisted, dataset.train.labels)
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
    train = narrow(dataset.train, config.samples_per_class)
    return Dataset(dataset.url, tuple(kept), train, val, (*dataset.notes, *notes))


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


def split_by_name(dataset: Dataset, share: float) -> Dataset:
    """Validation by the name of each sample alone: one that is added or removed moves no other."""
    if dataset.val is not None:
        raise DataError(
            f"data.split is {share} but {dataset.url} has a validation split of its own ({len(dataset.val)} samples); "
            "remove data.split, or point data.path at the training samples"
        )
    split, count = dataset.train, len(dataset.train)
    chosen = chosen_by_name([dataset.classes[label] for label in split.labels.tolist()], split.names, share)
    if not chosen.any() or chosen.all():
        raise DataError(f"data.split is {share}, which takes {int(chosen.sum())} of {count} samples; use another share")
    ids = np.arange(count)
    without = len(dataset.classes) - len(np.unique(split.labels[chosen]))
    note = f"data.split: {int(chosen.sum())} of {count} samples of {dataset.url} are for validation, by their names"
    note += f"; {without} of {len(dataset.classes)} classes have none there" if without else ""
    train, val = split.take(ids[~chosen]), split.take(ids[chosen])
    return Dataset(dataset.url, dataset.classes, train, val, (*dataset.notes, note))
