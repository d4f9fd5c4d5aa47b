"""Look at every sample of a dataset and say what is wrong with it, even where training would refuse to open it.

Three steps: `open_contents` lists, `examine` reads and decodes (a slice of samples at a time, a few numbers kept of
each), `judge` (in audit_findings.py) finds the problems in what was kept. No torch in here.
"""

import hashlib
import io
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flatout.data.pixels.decode import FORMATS, Undecodable, decode_pixels, refuse_image
from flatout.data.pixels.picture_limits import MAX_FILE_BYTES, CostsTooMuch
from flatout.data.source.dataset import Split, arranged_split, pack_splits
from flatout.data.source.formats.arrangement import Listing
from flatout.data.source.formats.choose import DETECT, arrange, open_source
from flatout.data.source.layouts import ANNOTATIONS, BY_FOLDERS, Layout, canonical
from flatout.data.source.listing import list_store
from flatout.data.source.pack import read_manifest
from flatout.data.source.readers import read_source
from flatout.errors import StorageError, StoreUnreachable
from flatout.storage.protocol import Entry, Store
from flatout.units import format_bytes

MAX_EXAMPLES = 20
_SLICE, _SLICE_BYTES = 32, 2**25  # samples and bytes that one thread holds at most (one sample may be larger)

OK, EMPTY, BOMB, BROKEN, UNREADABLE = range(5)  # what became of a sample
MODES = ("", "RGB", "grey", "alpha", "palette", "CMYK", "16-bit", "bilevel", "other")
KINDS = ("", *FORMATS, "pixels")
_LOOK = np.dtype(
    [
        ("split", "u1"),
        ("status", "u1"),
        ("mode", "u1"),
        ("kind", "u1"),
        ("turned", "?"),
        ("id", "<i4"),
        ("label", "<i4"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("digest", "S16"),
    ]
)


@dataclass(frozen=True)
class Contents:
    """Every sample of every split, even of a dataset that training would refuse."""

    path: str
    classes: tuple[str, ...]  # of all splits, by name; labels are positions in it
    splits: dict[str, Split]
    empty: tuple[tuple[str, str], ...] = ()  # split and class of folders without samples
    others: tuple[str, ...] = ()  # files that are not samples
    names_tell_format: bool = True  # not in a pack that holds samples in another form


class Look(NamedTuple):
    """What the bytes of one sample are."""

    status: int
    reason: str = ""
    kind: str = ""
    mode: str = ""
    turned: bool = False
    width: int = 0  # upright
    height: int = 0
    digest: bytes = b""
    decode_seconds: float = 0.0


@dataclass
class Examined:
    """One row for each sample looked at, in order; reasons only for as many as are shown."""

    rows: NDArray[np.void]
    reasons: dict[int, str] = field(default_factory=dict)
    bad: Counter[int] = field(default_factory=Counter)  # samples of each status with a reason
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    wall_seconds: float = 0.0


def open_contents(path: str, layout: str = DETECT, label_column: str | None = None) -> Contents:
    """List a dataset of any layout, or a pack."""
    store, only = open_source(path)
    manifest = read_manifest(store) if only is None else None
    if manifest is None:
        return _from_files(Listing(store, list_store(store), path, label_column, only), layout)
    originals = manifest.get("mode") == "original"
    return Contents(path, tuple(manifest["classes"]), pack_splits(store, manifest), names_tell_format=originals)


def _from_files(listing: Listing, wanted: str) -> Contents:
    arranged = arrange(listing, wanted, whole=False)
    layout, by_folders = arranged.layout, arranged.kind == BY_FOLDERS
    empty = tuple(_empty_folders(listing.store, layout, listing.entries)) if by_folders else ()
    found = {name for members in layout.splits.values() for name in members} | {name for _, name in empty}
    classes = sorted(found, key=canonical)
    splits = {name: arranged_split(arranged, name, classes) for name in layout.splits}
    used = {each for split in splits.values() for each in layout.objects_of(split.names)}
    others = sorted(name for name in listing.entries if name not in used and not name.endswith("/" + ANNOTATIONS))
    return Contents(listing.where, tuple(classes), splits, empty, tuple(others) if by_folders else ())


def _empty_folders(store: Store, layout: Layout, lengths: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    """Class folders without files are not among the objects; a local store can still show them."""
    prefixes = {"train": layout.train_prefix}
    for names in layout.splits.get("val", {}).values():
        top = names[0].split("/", 1)[0]
        if f"{layout.root}{top}/{ANNOTATIONS}" not in lengths:
            prefixes["val"] = top + "/"
        break
    for split, prefix in prefixes.items():
        folder = store.local_path(layout.root + prefix)
        if folder is not None and os.path.isdir(folder):
            with os.scandir(folder) as entries:
                folders = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
            yield from (
                (split, name)
                for name in sorted(folders, key=canonical)
                if not name.startswith(".")
                and not layout.splits[split].get(name)
                and not (split == "train" and name in layout.without_images)
            )


def look_at(data: bytes | memoryview) -> Look:
    """Format, mode, size and digest of a file, and whether it decodes, as training would decode it."""
    if len(data) == 0:
        return Look(EMPTY, "empty file")
    digest = hashlib.blake2b(data, digest_size=16).digest()
    kind = mode = ""
    turned = False
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        kind = "JPEG" if image.format == "MPO" else image.format or ""
        refuse_image(image, data)
        mode, turned = _mode(image, data), _is_turned(image, data)
    except (CostsTooMuch, Image.DecompressionBombError) as error:
        return Look(BOMB, str(error), kind, digest=digest)
    except Exception:  # noqa: S110  Pillow raises many kinds; the decoder below says what is wrong
        pass
    started = time.perf_counter()
    try:
        height, width = decode_pixels(data).shape[:2]
    except Undecodable as error:
        return Look(BROKEN, str(error), kind, digest=digest, decode_seconds=time.perf_counter() - started)
    return Look(OK, "", kind, mode, turned, width, height, digest, time.perf_counter() - started)


def _mode(image: Image.Image, data: bytes | memoryview) -> str:
    """Pillow opens 16-bit colour as plain RGB: only the file itself still says so."""
    bits: Any = getattr(image, "tag_v2", {}).get(258, 8)  # BitsPerSample of a TIFF
    deep = max(bits) if isinstance(bits, tuple) else bits
    if image.mode.startswith("I") or deep == 16 or (image.format == "PNG" and data[24] == 16):
        return "16-bit"
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or (image.mode != "P" and "transparency" in image.info):
        return "alpha"
    return {"RGB": "RGB", "L": "grey", "P": "palette", "CMYK": "CMYK", "1": "bilevel"}.get(image.mode, "other")


def _is_turned(image: Image.Image, data: bytes | memoryview) -> bool:
    """Asking a PNG without EXIF for it would decode it."""
    if image.format == "PNG" and b"eXIf" not in bytes(data):
        return False
    return image.getexif().get(0x0112, 1) in range(2, 9)


def _look_at_pixels(data: bytes | memoryview, height: int, width: int) -> Look:
    """A sample that is stored decoded."""
    digest = hashlib.blake2b(data, digest_size=16, salt=b"%d x %d" % (height, width)).digest()
    return Look(OK, "", "pixels", "RGB", False, width, height, digest)


def examine(
    contents: Contents, limit: int | None = None, workers: int = 2, progress: Callable[[int, int], None] | None = None
) -> Examined:
    """Read and decode samples, at most `limit` of each class and split; `progress` is told how many of how many."""
    chosen = [(split, _spread(split.labels, limit)) for split in contents.splits.values()]
    examined = Examined(np.zeros(sum(len(ids) for _, ids in chosen), _LOOK))
    tasks = iter([(number, split, part) for number, (split, ids) in enumerate(chosen) for part in _slices(split, ids)])
    under_way: deque[Future[_Slice]] = deque()
    started, done = time.perf_counter(), 0
    tell = progress or (lambda _done, _total: None)
    tell(0, len(examined.rows))
    pool = ThreadPoolExecutor(workers, "flatout-audit")
    try:
        # here and not in the threads: catch_warnings changes the whole process, and threads would undo each other
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while True:
                for task in islice(tasks, 2 * workers - len(under_way)):
                    under_way.append(pool.submit(_look_at_slice, *task))
                if not under_way:
                    break
                done = _take(examined, under_way.popleft().result(), done)
                tell(done, len(examined.rows))
    finally:
        pool.shutdown(cancel_futures=True)
    examined.wall_seconds = time.perf_counter() - started
    return examined


class _Slice(NamedTuple):
    rows: NDArray[np.void]
    reasons: dict[int, str]
    read_seconds: float
    decode_seconds: float


def _take(examined: Examined, part: _Slice, first: int) -> int:
    """Add what was found out about one slice; returns where the next one begins."""
    end = first + len(part.rows)
    examined.rows[first:end] = part.rows
    for slot, reason in part.reasons.items():
        status = int(part.rows["status"][slot])
        examined.bad[status] += 1
        if examined.bad[status] <= MAX_EXAMPLES:
            examined.reasons[first + slot] = reason
    examined.read_seconds += part.read_seconds
    examined.decode_seconds += part.decode_seconds
    return end


def _spread(labels: NDArray[np.int64], limit: int | None) -> NDArray[np.int64]:
    """Ids of all samples, or of `limit` spread evenly over each class; labels are sorted."""
    if limit is None or not len(labels):
        return np.arange(len(labels))
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    parts = np.split(order, starts[1:])
    return np.sort(np.concatenate([part[np.arange(n := min(limit, len(part))) * len(part) // n] for part in parts]))


def _slices(split: Split, ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    first, held = 0, 0
    for position, byte_count in enumerate(split.lengths[ids].tolist()):
        if position > first and (position - first == _SLICE or held + byte_count > _SLICE_BYTES):
            yield ids[first:position]
            first, held = position, 0
        held += byte_count
    if first < len(ids):
        yield ids[first:]


def _look_at_slice(number: int, split: Split, ids: NDArray[np.int64]) -> _Slice:
    rows, reasons = np.zeros(len(ids), _LOOK), {}
    rows["split"], rows["id"], rows["label"] = number, ids, split.labels[ids]
    fitting = np.flatnonzero(split.lengths[ids] <= MAX_FILE_BYTES)
    started = time.perf_counter()
    sources = dict(zip(fitting.tolist(), split.locate(ids[fitting]), strict=True))
    shapes = split.shapes(ids)
    read_seconds, decode_seconds = time.perf_counter() - started, 0.0
    for slot in range(len(ids)):
        started = time.perf_counter()
        if slot in sources:
            answer = read_source(sources.pop(slot))
            read_seconds += time.perf_counter() - started
            look = _look(answer, None if shapes is None else shapes[slot])
        else:
            look = Look(BOMB, f"{format_bytes(split.lengths[ids[slot]])} file")
        row = rows[slot]
        row["status"], row["turned"], row["width"], row["height"] = look.status, look.turned, look.width, look.height
        row["mode"], row["kind"], row["digest"] = MODES.index(look.mode), KINDS.index(look.kind), look.digest
        decode_seconds += look.decode_seconds
        if look.reason:
            reasons[slot] = look.reason
    return _Slice(rows, reasons, read_seconds, decode_seconds)


def _look(answer: bytes | memoryview | StorageError, shape: NDArray[np.int32] | None) -> Look:
    if isinstance(answer, StoreUnreachable):
        raise answer  # says nothing about the samples
    if isinstance(answer, StorageError):
        return Look(UNREADABLE, str(answer))
    if shape is not None and shape[0]:
        return _look_at_pixels(answer, int(shape[0]), int(shape[1]))
    return look_at(answer)
