"""Writing packs: shard by shard, verified, resumable after a kill, and back to files again."""

import csv
import io
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flatout.data.pixels.decode import Undecodable, decode_image
from flatout.data.source.dataset import Dataset, Split
from flatout.data.source.identity import digest_of
from flatout.data.source.layouts import ANNOTATIONS
from flatout.data.source.pack import MANIFEST, MODES, VERSION, PackIndex, PackReader, encode_index
from flatout.errors import ConfigError, DataError, NoSpace, StorageError

LABELS = "labels.csv"
_SLICE = 256  # samples fetched at once
_SLICES_AHEAD = 4
_KINDS = {"digest": "V16", "content": "V16"}


@dataclass(frozen=True)
class PackOptions:
    mode: str = "original"  # original | resized | decoded
    short_side: int = 256
    quality: int = 90
    shard_bytes: int = 1_000_000_000

    @classmethod
    def checked(cls, mode: str, short_side: int, quality: int, shard_bytes: int) -> "PackOptions":
        if mode not in MODES or not 1 <= quality <= 100 or short_side < 1 or shard_bytes < 1:
            raise ConfigError(
                f"cannot pack with mode {mode!r}, short side {short_side}, quality {quality}, shards of {shard_bytes} "
                f"bytes; mode is one of {', '.join(MODES)}, quality 1 to 100, the sizes positive"
            )
        return cls(mode, short_side, quality, shard_bytes)


@dataclass(frozen=True)
class Blob:
    """What is stored of one sample."""

    data: bytes
    content: bytes  # digest of the original file
    height: int = 0
    width: int = 0


def write_pack(dataset: Dataset, folder: Path, options: PackOptions, workers: int = 4) -> Iterator[tuple[int, int]]:
    """Pack every split; yields (samples done, samples in all). What an interrupted call finished is not done again."""
    _check_same_job(folder, dataset, options)
    splits = {name: split for name, split in (("train", dataset.train), ("val", dataset.val)) if split is not None}
    total, done = sum(len(split) for split in splits.values()), 0
    manifest: dict[str, Any] = {
        "format": "flatout-pack",
        "version": VERSION,
        "fingerprint": dataset.fingerprint,
        "mode": options.mode,
        "options": vars(options),
        "classes": list(dataset.classes),
        "splits": {},
    }
    for name, split in splits.items():
        shards, parts = [], []
        for number, (low, high) in enumerate(_shard_bounds(split, options)):
            shard, arrays = _write_shard(split, name, number, low, high, folder, options, workers)
            shards.append(shard)
            parts.append(arrays)
            done += high - low
            yield done, total
        manifest["splits"][name] = _write_index(split, name, parts, shards, folder, options)
    _write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    for leftover in (*folder.glob("*.part.npz"), folder / "packing.json"):
        leftover.unlink(missing_ok=True)


def _check_same_job(folder: Path, dataset: Dataset, options: PackOptions) -> None:
    """Parts of another dataset or mode must not be mixed in."""
    origins = [split.origin_digest() for split in (dataset.train, dataset.val) if split is not None]
    job = json.dumps({"fingerprint": dataset.fingerprint, "origins": origins, **vars(options)}, sort_keys=True)
    marker = folder / "packing.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = (folder / MANIFEST).exists() or (marker.exists() and marker.read_text() != job)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    if taken:
        raise DataError(f"{folder} already holds a pack (or an unfinished one of other data); choose an empty folder")
    _write_atomically(marker, job.encode())


def _shard_bounds(split: Split, options: PackOptions) -> list[tuple[int, int]]:
    """Cut by the size of the originals, so that the cuts are known before anything is read."""
    ends = np.cumsum(split.lengths)
    number = np.maximum(ends - 1, 0) // options.shard_bytes
    cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(split)]
    return [(low, high) for low, high in pairwise(cuts) if high > low]


def _write_shard(
    split: Split, name: str, number: int, low: int, high: int, folder: Path, options: PackOptions, workers: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    path, part = folder / f"{name}-{number:05d}.data", folder / f"{name}-{number:05d}.part.npz"
    if path.exists() and part.exists():  # finished by an earlier call
        with np.load(part) as saved:
            return {"name": path.name, "bytes": path.stat().st_size}, {key: saved[key] for key in saved.files}
    temporary = path.with_suffix(".tmp")
    names = ("offset", "length", "shard", "height", "width", "digest", "content")
    columns: dict[str, list[Any]] = {key: [] for key in names}
    try:
        with temporary.open("wb") as file, ThreadPoolExecutor(workers) as pool:
            for blob in _blobs(split, low, high, options, pool):
                place = (file.tell(), len(blob.data), number, blob.height, blob.width)
                values = (*place, _digest(blob.data), blob.content)
                for key, value in zip(columns, values, strict=True):
                    columns[key].append(value)
                file.write(blob.data)
            file.flush()
            os.fsync(file.fileno())
        arrays = {key: np.array(values, _KINDS.get(key, np.uint64)) for key, values in columns.items()}
        _verify(temporary, arrays)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from None
    os.replace(temporary, path)
    with io.BytesIO() as buffer:
        np.savez(buffer, allow_pickle=False, **arrays)
        _write_atomically(part, buffer.getvalue())
    return {"name": path.name, "bytes": path.stat().st_size}, arrays


def _blobs(split: Split, low: int, high: int, options: PackOptions, pool: ThreadPoolExecutor) -> Iterator[Blob]:
    starts = iter(range(low, high, _SLICE))
    under_way: deque[Future[list[Blob]]] = deque()
    while True:
        for start in islice(starts, _SLICES_AHEAD - len(under_way)):
            ids = np.arange(start, min(start + _SLICE, high))
            under_way.append(pool.submit(_converted, split, ids, options))
        if not under_way:
            return
        yield from under_way.popleft().result()


def _converted(split: Split, ids: NDArray[np.int64], options: PackOptions) -> list[Blob]:
    blobs, known = [], split.known_digests()[ids]
    for sample_id, source, content in zip(ids.tolist(), split.read(ids), known, strict=True):
        if isinstance(source, StorageError):
            raise source
        check_stored(split, sample_id, source)
        original = digest_of(source) if split.origins.stores_originals else content.tobytes()
        blobs.append(_convert(bytes(source), original, split.names[sample_id], options))
    return blobs


def _convert(data: bytes, content: bytes, name: str, options: PackOptions) -> Blob:
    """The stored form of one sample; what cannot be decoded is kept as it is, so that it is found out when used."""
    if options.mode == "original":
        return Blob(data, content)
    try:
        image = decode_image(data)
    except Undecodable as error:
        if options.mode == "decoded":
            raise DataError(f"{name!r} cannot be decoded ({error}); remove it first, or use --mode original") from None
        return Blob(data, content)
    if options.mode == "decoded":
        return Blob(np.asarray(image).tobytes(), content, image.height, image.width)
    return Blob(_resized(image, options), content)


def _resized(image: Image.Image, options: PackOptions) -> bytes:
    scale = options.short_side / min(image.size)
    if scale < 1:
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=options.quality)
    return out.getvalue()


def _verify(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Read back what was written."""
    with path.open("rb") as file:
        for length, digest in zip(arrays["length"].tolist(), arrays["digest"], strict=True):
            if _digest(file.read(length)) != digest.tobytes():
                raise OSError(f"what was read back from {path} is not what was written")


def _write_index(
    split: Split,
    name: str,
    parts: list[dict[str, NDArray[Any]]],
    shards: list[dict[str, Any]],
    folder: Path,
    options: PackOptions,
) -> dict[str, Any]:
    arrays: dict[str, NDArray[Any]] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    arrays["label"], arrays["original_length"] = split.labels, split.lengths
    arrays["name_end"] = np.cumsum([len(os.fsencode(each)) for each in split.names])
    _write_atomically(folder / f"{name}.index", encode_index(PackIndex(options.mode, arrays, split.names)))
    return {"samples": len(split), "index": f"{name}.index", "shards": shards}


def unpack(dataset: Dataset, folder: Path) -> Iterator[tuple[int, int]]:
    """Write the samples of a pack of files back as files under their own names, and their classes where those do not
    say them."""
    splits = [split for split in (dataset.train, dataset.val) if split is not None]
    total, done = sum(len(split) for split in splits), 0
    for split in splits:
        for start in range(0, len(split), _SLICE):
            ids = np.arange(start, min(start + _SLICE, len(split)))
            for sample_id, source in zip(ids.tolist(), split.read(ids), strict=True):
                if isinstance(source, StorageError):
                    raise source
                check_stored(split, sample_id, source)
                _write_sample(folder, split.names[sample_id], source)
                done += 1
            yield done, total
        _write_annotations(split, dataset.classes, folder)
    _write_labels(dataset, folder)


def _write_labels(dataset: Dataset, folder: Path) -> None:
    """A table of the classes, where they are not the names of folders: of a table, of shards."""
    splits = [(word, split) for word, split in (("train", dataset.train), ("val", dataset.val)) if split is not None]
    apart = len({id(split.reader) for _, split in splits}) > 1  # else it is held out, and no split of the data's
    rows = [
        (name, dataset.classes[label], word if apart else "")
        for word, split in splits
        for name, label in zip(split.names, split.labels.tolist(), strict=True)
    ]
    if all(label in name.split("/")[:-1] or name.split("/")[1:2] == ["images"] for name, label, _ in rows):
        return
    with (folder / LABELS).open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])


def _write_annotations(split: Split, classes: Sequence[str], folder: Path) -> None:
    """The original Tiny-ImageNet layout keeps the classes of val/images/* in a file beside it."""
    flat = [name for name in split.names if name.split("/")[1:2] == ["images"]]
    if flat and len(flat) == len(split):
        lines = (
            f"{name.rsplit('/', 1)[1]}\t{classes[label]}\n"
            for name, label in zip(split.names, split.labels, strict=True)
        )
        (folder / flat[0].split("/")[0] / ANNOTATIONS).write_text("".join(lines), errors="surrogateescape")


def check_stored(split: Split, sample_id: int, data: bytes | memoryview) -> None:
    """Of a pack: what its index says is stored."""
    if isinstance(split.reader, PackReader):
        index = split.reader.index
        if index.digest_of(data) != index.arrays["digest"][split.rows[sample_id]].tobytes():
            name = split.names[sample_id]
            raise DataError(f"{name!r} does not match its digest; the pack was damaged, copy it again")


def _write_sample(folder: Path, name: str, data: bytes | memoryview) -> None:
    target = _inside(folder, name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        raise _cannot_write(target, error) from None


def _inside(folder: Path, name: str) -> Path:
    target = folder / name
    if "\0" in name or not target.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"the pack has a sample named {name!r}, which leads out of {folder}; refusing to write it")
    return target


def _digest(data: bytes) -> bytes:
    """Of what is stored."""
    return digest_of(data)


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from None
    os.replace(temporary, path)


def _cannot_write(path: Path, error: OSError) -> NoSpace:
    what = error.strerror or str(error)
    return NoSpace(f"cannot write {path}: {what}; free some space or choose another folder, and run the command again")
