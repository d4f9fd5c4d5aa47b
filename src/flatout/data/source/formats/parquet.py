"""Parquet files with image bytes, as Hugging Face's datasets are kept: `image: {bytes, path}` and a `label`.

A row cannot be read without its row group, so each file is unpacked once, to a file of the images one after the other
under ~/.cache/flatout/parquet; from then on they are read like members of a tar. What is there is used only for the
file that it was made of: its name is the locator, and the digest of every image is in its index.
"""

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.data.source.array_file import Arrays, pack_names, read_arrays, unpack_names, write_arrays
from flatout.data.source.formats.arrangement import Arrangement, Listing, open_archive, split_in_name
from flatout.data.source.formats.mds import ending_of
from flatout.data.source.formats.numbered import class_names, listed_classes
from flatout.data.source.formats.tables import LABEL_COLUMNS
from flatout.data.source.identity import digest_of
from flatout.data.source.layouts import Layout
from flatout.data.source.listing import list_store
from flatout.errors import BadFile, DataError, NoSpace
from flatout.machine.budgets import cache_folder, disk_budget_bytes
from flatout.storage.local import FolderStore
from flatout.storage.locators import NO_LOCATOR
from flatout.storage.members import Archive, MemberStore, Place
from flatout.storage.protocol import Entry
from flatout.units import format_bytes
from flatout.untrusted import parse_json

MAX_GROUP_BYTES = 2**32
"""Of one row group, as its file says; images are taken from it a few at a time."""
MAX_ROWS = 2**31
_ROWS_AT_ONCE = 32
_IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "picture", "bytes")


@dataclass(frozen=True)
class Schema:
    """Which columns are the image and the class, and the names of the classes where the file has them."""

    image: str
    nested: bool  # a struct of bytes and path
    label: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class Unpacked:
    """The images of one file, one after the other in `path`."""

    path: Path
    ends: list[int]
    labels: list[str]
    numeric: bool
    names: list[str]
    digests: list[bytes]
    classes: tuple[str, ...] | None


def arrange_parquet(listing: Listing, files: list[str]) -> Arrangement:
    opened = [(name, unpacked(listing, listing.entries[name])) for name in files]
    call = _naming(listing, opened)
    folder = cache_folder() / "parquet"
    archives = tuple(
        Archive(each.path.name, each.ends[-1] if each.ends else 0, listing.entries[name].locator)
        for name, each in opened
    )
    table: dict[str, Place] = {}
    layout, digests = Layout(""), {}
    taken = Counter(
        (split_in_name(name), *pair) for name, each in opened for pair in zip(each.labels, each.names, strict=True)
    )
    for number, (file, each) in enumerate(opened):
        split, begin = split_in_name(file), 0
        stem = os.path.splitext(os.path.basename(file))[0]
        for row, (end, label, own) in enumerate(zip(each.ends, each.labels, each.names, strict=True)):
            unique = own and not own.startswith(".") and taken[split, label, own] == 1
            ending = own if own.startswith(".") else os.path.splitext(own)[1]
            base = own if unique else f"{stem}-{row:06d}{ending}"
            name = "/".join([*([split] if split else []), call(label), base])
            table[name] = Place(number, begin, end - begin, end - begin)
            digests[name] = each.digests[row]
            layout.splits.setdefault(split or "train", {}).setdefault(call(label), []).append(name)
            begin = end
    if not layout.splits.get("train"):
        raise DataError(f"{listing.where} has no training samples in its parquet files; name some train-*.parquet")
    store = MemberStore(FolderStore(str(folder)), archives, table, url=listing.store.url)
    note = f"{listing.where}: {len(table)} images of {len(files)} parquet files, unpacked to {folder}"
    return Arrangement(store, list_store(store), layout, (note,), digests)


def _naming(listing: Listing, opened: list[tuple[str, Unpacked]]) -> Any:
    """Label as it is stored -> name of the class; a name with a slash could not be a folder's."""
    lists = {each.classes for _, each in opened}
    if len(lists) > 1:
        raise DataError(f"the parquet files of {listing.where} name different classes; are they of one dataset?")
    (names,) = lists or {None}
    numeric = all(each.numeric for _, each in opened)
    source, listed = listed_classes(listing) if names is None else ("its schema", list(names))
    if not numeric:
        return lambda label: label.replace("/", "_")
    numbers = {int(label) for _, each in opened for label in each.labels}
    call = class_names(numbers, listed, source, listing.where)
    return lambda label: call(int(label)).replace("/", "_")


def unpacked(listing: Listing, entry: Entry) -> Unpacked:
    """From an earlier start where the file is proven the same; else made now, by one process while others wait."""
    if entry.locator == NO_LOCATOR:
        raise DataError(f"{entry.name} of {listing.where} cannot be told from another version; copy it to this machine")
    key = digest_of(entry.locator + (listing.label_column or "").encode()).hex()
    folder = cache_folder() / "parquet"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{key}.lock"):
            return _saved(folder, key) or _unpack(listing, entry, folder, key)
    except OSError as error:
        raise NoSpace(
            f"cannot unpack {entry.name} to {folder}: {error.strerror or error}; free some space, or set "
            "XDG_CACHE_HOME to a disk with more"
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Ranks and jobs of this machine: one unpacks, and its end lets the next in. A pipe or a link in the lock's place
    is not waited for."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _saved(folder: Path, key: str) -> Unpacked | None:
    arrays, path = read_arrays(folder / f"{key}.npz"), folder / f"{key}.data"
    if (
        arrays is None
        or not path.exists()
        or path.stat().st_size != int(arrays["ends"][-1] if len(arrays["ends"]) else 0)
    ):
        return None
    found = _as_unpacked(arrays, path)
    return found if len(found.ends) == len(found.labels) == len(found.names) == len(found.digests) else None


def _as_unpacked(arrays: Arrays, path: Path) -> Unpacked:
    digests = arrays["digests"].tobytes()
    return Unpacked(
        path,
        arrays["ends"].tolist(),
        unpack_names(arrays["labels"]),
        bool(arrays["numeric"]),
        unpack_names(arrays["names"]),
        [digests[at : at + 16] for at in range(0, len(digests), 16)],
        tuple(unpack_names(arrays["classes"])) if bool(arrays["has_classes"]) else None,
    )


def _unpack(listing: Listing, entry: Entry, folder: Path, key: str) -> Unpacked:
    where = f"{entry.name} of {listing.where}"
    arrow, parquet = _libraries(where)
    room = disk_budget_bytes(folder)
    if entry.bytes > room:
        raise NoSpace(
            f"{where} has {format_bytes(entry.bytes)} to unpack, and {folder} may take {format_bytes(room)}; free some "
            "space, or set XDG_CACHE_HOME to a disk with more"
        )
    temporary = folder / f"{key}.{os.getpid()}.tmp"
    try:
        file = parquet.ParquetFile(open_archive(listing.store, entry).file)
        schema = _schema(file, listing.label_column, where)
        with temporary.open("wb") as out:
            arrays = _copy(file, schema, out, where)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, folder / f"{key}.data")
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; arrow's own have no number
            raise
        raise DataError(f"{where} cannot be read as parquet: {str(error)[:120]!r}; download it again") from None
    finally:
        temporary.unlink(missing_ok=True)
    write_arrays(folder / f"{key}.npz", arrays)
    return _as_unpacked(arrays, folder / f"{key}.data")


def _libraries(where: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{where} needs pyarrow to be read; install it with: pip install 'flatout[datasets]'") from None
    return pyarrow, parquet


def _copy(file: Any, schema: Schema, out: Any, where: str) -> Arrays:
    _check_groups(file, where)
    ends: list[int] = []
    labels: list[str] = []
    names: list[str] = []
    digests, numeric = [], True
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[schema.image, schema.label]):
        for image, label in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            data, name = _image(image, schema, len(ends), where)
            if label is None or isinstance(label, list | dict | float) or "\0" in str(label):
                raise DataError(
                    f"{where}: row {len(ends)} has the {schema.label} {str(label)[:40]!r}; expected one class"
                )
            out.write(data)
            ends.append((ends[-1] if ends else 0) + len(data))
            numeric = numeric and isinstance(label, int) and not isinstance(label, bool)
            labels.append(str(label))
            names.append(name or ending_of(data))
            digests.append(digest_of(data))
    return {
        "ends": np.array(ends, np.int64),
        "labels": pack_names(labels),
        "numeric": np.array(numeric),
        "names": pack_names(names),
        "digests": np.frombuffer(b"".join(digests), np.uint8),
        "classes": pack_names(list(schema.classes or ())),
        "has_classes": np.array(schema.classes is not None),
    }


def _check_groups(file: Any, where: str) -> None:
    """What the file claims of itself, before anything is allocated by it."""
    metadata = file.metadata
    if metadata.num_rows > MAX_ROWS:
        raise DataError(f"{where} claims {metadata.num_rows} rows, limit {MAX_ROWS}; refusing it")
    for number in range(metadata.num_row_groups):
        size = metadata.row_group(number).total_byte_size
        if not 0 <= size <= MAX_GROUP_BYTES:
            raise DataError(
                f"{where}: row group {number} unpacks to {size} bytes, limit {MAX_GROUP_BYTES}; write it again with "
                "smaller row groups (row_group_size=100)"
            )


def _image(value: Any, schema: Schema, row: int, where: str) -> tuple[bytes, str]:
    data = value.get("bytes") if isinstance(value, dict) else value
    path = str(value.get("path") or "") if isinstance(value, dict) else ""
    if not isinstance(data, bytes):
        only = f", only the path {path[:60]!r}" if path else ""
        raise DataError(f"{where}: row {row} has no bytes of its {schema.image}{only}; save it with its images inside")
    base = path.replace("\\", "/").rsplit("/", 1)[-1]
    return data, "" if "\0" in base or base in (".", "..") else base


def _schema(file: Any, wanted: str | None, where: str) -> Schema:
    fields = {field.name: field.type for field in file.schema_arrow}
    listed = ", ".join(f"{name}: {kind}" for name, kind in fields.items())[:200]
    features = _features(file.schema_arrow.metadata or {})
    nested = [name for name, kind in fields.items() if _has_bytes(kind)]
    plain = [name for name in _IMAGE_COLUMNS if name in fields and str(fields[name]) in ("binary", "large_binary")]
    image = next((name for name in (*nested, *plain)), None)
    labels = [name for name, each in features.items() if each.get("_type") == "ClassLabel" and name in fields]
    labels += [name for name in LABEL_COLUMNS if name in fields]
    label = (wanted if wanted in fields else None) if wanted else next(iter(labels), None)
    if image is None or label is None:
        missing = "image (a struct of bytes and path, or binary)" if image is None else f"class ({wanted or 'label'})"
        raise DataError(f"{where} has the columns {listed}, and no {missing}; name the class with data.label_column")
    names = features.get(label, {}).get("names")
    known = isinstance(names, list) and all(isinstance(name, str) and "\0" not in name for name in names)
    return Schema(image, image in nested, label, tuple(names) if known and isinstance(names, list) else None)


def _has_bytes(kind: Any) -> bool:
    """A struct with a field `bytes` of binary."""
    try:
        return any(kind.field(k).name == "bytes" for k in range(kind.num_fields))
    except (AttributeError, TypeError):
        return False


def _features(metadata: dict[bytes, bytes]) -> dict[str, dict[str, Any]]:
    """What the library `datasets` wrote of the columns."""
    try:
        features = parse_json(metadata[b"huggingface"].decode(), "parquet")["info"]["features"]
        return {name: each for name, each in features.items() if isinstance(each, dict)}
    except (BadFile, KeyError, ValueError, TypeError, AttributeError):
        return {}
