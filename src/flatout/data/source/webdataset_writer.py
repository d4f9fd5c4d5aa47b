"""A dataset as WebDataset shards: `<key>.<ending>` and `<key>.cls` for each sample, and the classes beside them."""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from flatout.data.source.dataset import Dataset, Split
from flatout.data.source.formats.webdataset import IMAGES
from flatout.data.source.pack_writer import check_stored
from flatout.errors import DataError, NoSpace, StorageError

_SLICE = 64  # samples read at once


def write_webdataset(dataset: Dataset, folder: Path, shard_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields (samples done, samples in all). A shard gets its name when it is whole; `classes.txt` comes last."""
    if dataset.train.shapes(np.arange(1)) is not None or not dataset.train.origins.stores_originals:
        raise DataError(f"{dataset.url} holds pixels or resized images, not the files; export what it was made of")
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; choose another folder")
    broken = next((name for name in dataset.classes if name.strip() != name or "\n" in name or not name), None)
    if broken is not None:
        raise DataError(f"the class {broken!r} cannot stand on a line of classes.txt; rename it")
    splits = [(name, split) for name, split in (("train", dataset.train), ("val", dataset.val)) if split is not None]
    total, done = sum(len(split) for _, split in splits), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, split in splits:
            for written in _write_split(split, name, folder, shard_bytes):
                done += written
                yield done, total
        (folder / "classes.txt").write_text("".join(f"{each}\n" for each in dataset.classes), errors="surrogateescape")
    except OSError as error:
        raise NoSpace(f"cannot write {folder}: {error.strerror or error}; free some space, and begin again") from None


def _write_split(split: Split, name: str, folder: Path, shard_bytes: int) -> Iterator[int]:
    """Samples in their order, cut where a shard is full; yields how many were written."""
    number = np.maximum(np.cumsum(split.lengths + 2048) - 1, 0) // shard_bytes
    for shard, each in enumerate(np.unique(number).tolist()):
        ids = np.flatnonzero(number == each)
        path = folder / f"{name}-{shard:06d}.tar"
        temporary = path.with_suffix(".tmp")
        keys: set[str] = set()
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
            for start in range(0, len(ids), _SLICE):
                _add_samples(tar, split, ids[start : start + _SLICE].tolist(), keys)
                yield len(ids[start : start + _SLICE])
        os.replace(temporary, path)


def _add_samples(tar: tarfile.TarFile, split: Split, ids: Sequence[int], keys: set[str]) -> None:
    for sample_id, data in zip(ids, split.read(np.array(ids, np.int64)), strict=True):
        if isinstance(data, StorageError):
            raise data
        check_stored(split, sample_id, data)
        name = split.names[sample_id]
        stem, _, ending = name.rpartition(".")
        key, base = stem, stem.rpartition("/")[2]
        plain = ending.lower() in IMAGES and base and "." not in base and stem not in keys
        if not plain:  # the key would end at another dot, or be another sample's: the name is kept beside it
            key = f"{name.rpartition('/')[0]}/{sample_id:08d}".lstrip("/")
        keys.add(key)
        _add(tar, name if plain else f"{key}.jpg", bytes(data))
        _add(tar, f"{key}.cls", str(int(split.labels[sample_id])).encode())
        if not plain:
            _add(tar, f"{key}.json", json.dumps({"name": name}).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no times and owners: the same bytes every time
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
