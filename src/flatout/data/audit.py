"""Look at every sample of a dataset and say what is wrong with it, even where training would refuse to open it.

Three steps: `open_contents` lists, `examine` reads and decodes (a slice of samples at a time, a few numbers kept of
each), `judge` finds the problems in what was kept. Only the first two touch files. No torch in here.
"""

import hashlib
import io
import os
import re
import time
import unicodedata
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flatout.data.dataset import Checked, Split
from flatout.data.decode import FORMATS, MAX_PIXELS, Undecodable, decode_pixels
from flatout.data.layouts import ANNOTATIONS, Layout, canonical, find_layout
from flatout.data.pack import open_split, read_manifest
from flatout.data.readers import ObjectReader, read_source
from flatout.errors import DataError, StorageError, StoreUnreachable
from flatout.storage import open_store
from flatout.storage.protocol import Range, Store
from flatout.units import format_bytes

Severity = Literal["problem", "warning", "note"]
MAX_EXAMPLES = 20
FEW_SAMPLES = 10  # a training class below this hardly teaches anything
IMBALANCE = 10  # largest class over smallest from which on it is worth a warning
MAX_FILE_BYTES = 2**30  # no honest image is larger; such a file is not read
_LONG_NAME_BYTES = 250  # of 255: a longer name leaves no room for the suffix of a temporary file
_SHOWN_COPIES = 6  # names in one example
_SLICE, _SLICE_BYTES = 32, 2**25  # samples and bytes that one thread holds at most (one sample may be larger)

OK, EMPTY, BOMB, BROKEN, UNREADABLE = range(5)  # what became of a sample
_STATUS_IDS = {EMPTY: "empty-file", BOMB: "bomb", BROKEN: "undecodable", UNREADABLE: "unreadable"}
MODES = ("", "RGB", "grey", "alpha", "palette", "CMYK", "16-bit", "bilevel", "other")
KINDS = ("", *FORMATS, "pixels")
_EXTENSIONS = {
    "jpg": "JPEG", "jpeg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "mpo": "JPEG", "png": "PNG", "webp": "WEBP",
    "bmp": "BMP", "gif": "GIF", "tif": "TIFF", "tiff": "TIFF", "ppm": "PPM", "pgm": "PPM", "pbm": "PPM", "pnm": "PPM",
}  # fmt: skip
_LOOK = np.dtype(
    [("split", "u1"), ("status", "u1"), ("mode", "u1"), ("kind", "u1"), ("turned", "?"), ("id", "<i4"),
     ("label", "<i4"), ("width", "<i4"), ("height", "<i4"), ("digest", "S16")]
)  # fmt: skip
_COPY_NAME = re.compile(r"(?i)^copy of .|.(?: ?\(\d{1,3}\)|[ _-]+copy(?: ?\d+| ?\(\d+\))?)$")

_TEXTS: dict[str, tuple[Severity, str, str]] = {
    "class-mismatch": ("problem", "classes that only one of train and val has",
        "Training refuses such a dataset, since labels would not match: give both splits the same class folders."),
    "empty-class": ("problem", "class folders without a sample",
        "Training refuses an empty class: add images or remove the folder."),
    "empty-file": ("problem", "files of zero bytes",
        "Usually a download or copy that broke off: fetch them again or delete them."),
    "undecodable": ("problem", "files that cannot be decoded",
        "Training leaves them out of every epoch and lists them in quarantine.csv: fetch them again or delete them."),
    "unreadable": ("problem", "files that cannot be read", "Check permissions, the disk and the mount."),
    "bomb": ("problem", "decompression bombs: more pixels or bytes than the limit",
        f"Refused before anything is allocated (limit {MAX_PIXELS} pixels, {format_bytes(MAX_FILE_BYTES)}): "
        "delete them, or scale them down if they are genuine."),
    "label-conflict": ("problem", "samples with the same bytes as a sample of another class",
        "One of the labels is wrong: look at them, keep one and delete the others."),
    "leak": ("problem", "validation samples with the same bytes as a training sample",
        "Accuracy on them is memory, not skill: remove them from one of the splits."),
    "duplicates": ("warning", "copies of a sample in the same class and split",
        "Each copy counts again in every epoch, and held-out validation would leak: keep one of each."),
    "imbalance": ("warning", "classes with a tenth or less of the samples of the largest",
        "Accuracy will favour large classes: collect more of the small ones, or judge by accuracy per class."),
    "few-samples": ("warning", f"training classes with fewer than {FEW_SAMPLES} samples",
        "Collect more, merge them with another class, or leave them out with data.classes."),
    "one-class": ("warning", "the only class there is",
        "Nothing can be learned from one class: is PATH the right folder? expected train/<class>/<image>."),
    "similar-classes": ("warning", "class names that differ only by case, spaces or unicode form",
        "Probably one class under two names: merge the folders, or rename them so that they differ clearly."),
    "not-in-a-class": ("warning", "images that belong to no class or split",
        "They are not used: move them into a class folder (train/<class>/, val/<class>/) or delete them."),
    "mode-16-bit": ("warning", "images with 16 bits per channel",
        "The upper 8 bits are kept; 12-bit data in 16 bits turns nearly black: convert to 8 bits yourself if so."),
    "mode-alpha": ("warning", "images with transparency",
        "Alpha is dropped, so hidden colours show: paste them on the background you want if that matters."),
    "mode-other": ("warning", "images in a rare colour mode",
        "Pillow converts them to RGB; look at the result, or convert them yourself."),
    "odd-characters": ("warning", "names with control or invisible characters",
        "Scripts and other tools trip over them: rename the files."),
    "not-unicode": ("warning", "names that are not valid UTF-8", "Object stores refuse them: rename the files."),
    "mode-grey": ("note", "greyscale images", "Nothing to do: the three channels become equal."),
    "mode-palette": ("note", "palette images", "Nothing to do: converted to RGB; transparency is dropped."),
    "mode-CMYK": ("note", "CMYK images", "Nothing to do: converted to RGB without a colour profile."),
    "mode-bilevel": ("note", "black-and-white (1 bit) images", "Nothing to do: converted to RGB."),
    "exif-rotation": ("note", "images turned upright by an EXIF tag",
        "Nothing to do: turned in training and validation alike; other tools may not turn them."),
    "wrong-extension": ("note", "files whose name does not tell their format",
        "flatout goes by the content; other tools may skip or refuse them: rename them."),
    "copy-names": ("note", "names that look like copies",
        "Look for near-duplicates: exact ones are listed as duplicates, re-saved ones are not."),
    "long-names": ("note", f"names of {_LONG_NAME_BYTES} bytes or more",
        "At the limit of file systems (255), so tools that append a suffix fail: shorten them."),
    "hidden-files": ("note", "hidden files (a part of the name starts with a dot)",
        "Not used. Those named ._* and .DS_Store are left over from macOS and can go."),
    "other-files": ("note", "files that are not samples", "Not used; nothing to do."),
    "no-validation": ("note", "no validation split",
        "Training holds out a fixed share (data.holdout): add a val/ folder to choose the samples yourself."),
}  # fmt: skip
"""Finding -> severity, what it counts, what to do; in the order of a report."""


@dataclass(frozen=True)
class Contents:
    """Every sample of every split, even of a dataset that training would refuse."""

    path: str
    classes: tuple[str, ...]  # of all splits, by name; labels are positions in it
    splits: dict[str, Split]
    empty: tuple[tuple[str, str], ...] = ()  # split and class of folders without samples
    others: tuple[str, ...] = ()  # files that are not samples
    names_tell_format: bool = True  # not in a pack that holds samples in another form


@dataclass(frozen=True)
class Example:
    names: tuple[str, ...]  # of samples, files or classes; several where they belong together
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """One kind of thing that is wrong or worth knowing."""

    id: str
    severity: Severity
    what: str
    count: int
    examples: tuple[Example, ...]
    do: str


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


def open_contents(path: str) -> Contents:
    """List a folder, tar, pack or object store."""
    store = open_store(path)
    if isinstance(store, Checked):
        store.check()
    manifest = read_manifest(store)
    if manifest is None:
        return _from_files(store, path)
    splits = {}
    for name in manifest["splits"]:
        opened = open_split(store, manifest, name)
        arrays = opened.index.arrays
        labels, lengths = arrays["label"].astype(np.int64), arrays["original_length"].astype(np.int64)
        if len(labels) and labels.max() >= len(manifest["classes"]):
            raise DataError(f"{path} has label {labels.max()} but {len(manifest['classes'])} classes; pack it again")
        splits[name] = Split(opened.index.names, labels, lengths, opened.reader, np.arange(len(labels)))
    originals = manifest.get("mode") == "original"
    return Contents(path, tuple(manifest["classes"]), splits, names_tell_format=originals)


def _from_files(store: Store, path: str) -> Contents:
    lengths = {entry.name: entry.bytes for entry in store.entries()}
    layout = find_layout(lengths, lambda name: _read_text(store, name), path)
    empty = tuple(_empty_folders(store, layout, lengths))
    found = {name for members in layout.splits.values() for name in members} | {name for _, name in empty}
    classes = sorted(found, key=canonical)
    splits = {name: _split(store, layout.root, members, classes, lengths) for name, members in layout.splits.items()}
    used = {layout.root + name for split in splits.values() for name in split.names}
    others = sorted(name for name in lengths if name not in used and not name.endswith("/" + ANNOTATIONS))
    return Contents(path, tuple(classes), splits, empty, tuple(others))


def _read_text(store: Store, name: str) -> str:
    (answer,) = store.read_many([Range(name)])
    if isinstance(answer, StorageError):
        raise answer
    return answer.decode("utf-8", "surrogateescape")


def _split(
    store: Store, root: str, members: dict[str, list[str]], classes: list[str], lengths: dict[str, int]
) -> Split:
    pairs = [
        (name, label) for label, each in enumerate(classes) for name in sorted(members.get(each, ()), key=canonical)
    ]
    names, labels = tuple(name for name, _ in pairs), np.array([label for _, label in pairs], np.int64)
    sizes = np.array([lengths[root + name] for name in names], np.int64)
    return Split(
        names, labels, sizes, ObjectReader(store, tuple(root + n for n in names), sizes), np.arange(len(names))
    )


def _empty_folders(store: Store, layout: Layout, lengths: dict[str, int]) -> Iterator[tuple[str, str]]:
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
                if not name.startswith(".") and not layout.splits[split].get(name)
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
        if image.width * image.height > MAX_PIXELS:
            return Look(BOMB, f"{image.width} x {image.height} pixels", kind, digest=digest)
        mode, turned = _mode(image, data), _is_turned(image, data)
    except Image.DecompressionBombError as error:
        return Look(BOMB, str(error), digest=digest)
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


def judge(contents: Contents, examined: Examined) -> list[Finding]:
    """Everything that is wrong or worth knowing, problems first. Pure."""
    found = {
        finding: (count, examples)
        for finding, count, examples in (
            *_bad_content(contents, examined),
            *_odd_content(contents, examined),
            *_duplicates(contents, examined),
            *_classes(contents),
            *_names(contents),
        )
        if count
    }
    return [
        Finding(each, severity, what, found[each][0], tuple(islice(found[each][1], MAX_EXAMPLES)), do)
        for each, (severity, what, do) in _TEXTS.items()
        if each in found
    ]


_Found = tuple[str, int, Iterable[Example]]


def _name(contents: Contents, row: np.void) -> str:
    split = next(islice(contents.splits.values(), int(row["split"]), None))
    return split.names[int(row["id"])]


def _bad_content(contents: Contents, examined: Examined) -> Iterator[_Found]:
    for status, finding in _STATUS_IDS.items():
        where = np.flatnonzero(examined.rows["status"] == status)
        yield finding, len(where), [
            Example((_name(contents, examined.rows[row]),), examined.reasons.get(row, ""))
            for row in where[:MAX_EXAMPLES].tolist()
        ]  # fmt: skip


def _odd_content(contents: Contents, examined: Examined) -> Iterator[_Found]:
    rows = examined.rows[examined.rows["status"] == OK]

    def some(finding: str, chosen: NDArray[np.void], detail: Callable[[np.void], str]) -> _Found:
        shown = chosen[:MAX_EXAMPLES]
        return finding, len(chosen), [Example((_name(contents, row),), detail(row)) for row in shown]

    for code, mode in enumerate(MODES[2:], 2):
        yield some(f"mode-{mode}", rows[rows["mode"] == code], lambda row: KINDS[row["kind"]])
    yield some("exif-rotation", rows[rows["turned"]], lambda row: f"{row['width']} x {row['height']} upright")
    if contents.names_tell_format:
        differs = rows[_named_kinds(contents, rows) != rows["kind"]]
        yield some("wrong-extension", differs, lambda row: f"is {KINDS[row['kind']]}")


def _named_kinds(contents: Contents, rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """Codes of the formats that the names promise; 0 where they promise none."""
    codes = {extension: KINDS.index(kind) for extension, kind in _EXTENSIONS.items()}
    kinds = np.zeros(len(rows), np.uint8)
    for number, split in enumerate(contents.splits.values()):
        where = rows["split"] == number
        kinds[where] = [codes.get(_extension(split.names[i]), 0) for i in rows["id"][where].tolist()]
    return kinds


def _extension(name: str) -> str:
    stem, dot, extension = name.rsplit("/", 1)[-1].rpartition(".")
    return extension.lower() if stem and dot else ""


def _duplicates(contents: Contents, examined: Examined) -> Iterator[_Found]:
    rows = examined.rows[examined.rows["digest"] != b""]
    counts: Counter[str] = Counter()
    shown: dict[str, list[Example]] = {"label-conflict": [], "leak": [], "duplicates": []}
    for group in _groups(rows["digest"]):
        same = rows[group]
        places = Counter(zip(same["split"].tolist(), same["label"].tolist(), strict=True))
        in_val = sum(number for (split, _), number in places.items() if split > 0)
        affected = {
            "label-conflict": len(same) if len({label for _, label in places}) > 1 else 0,
            "leak": in_val if in_val < len(same) else 0,
            "duplicates": len(same) - len(places),
        }
        for finding, count in affected.items():
            counts[finding] += count
            if count and len(shown[finding]) < MAX_EXAMPLES:
                shown[finding].append(_copies(contents, same))
    for finding, examples in shown.items():
        yield finding, counts[finding], examples


def _groups(digests: NDArray[np.bytes_]) -> list[NDArray[np.int64]]:
    """Positions of equal digests, for those that occur more than once, by first position."""
    if not len(digests):
        return []
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    parts = np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    return sorted((part for part in parts if len(part) > 1), key=lambda part: int(part[0]))


def _copies(contents: Contents, same: NDArray[np.void]) -> Example:
    """One of each class and split first, so that what differs is seen."""
    places = list(zip(same["split"].tolist(), same["label"].tolist(), strict=True))
    firsts = {place: row for row, place in reversed(list(enumerate(places)))}
    order = sorted(range(len(same)), key=lambda row: (firsts[places[row]] != row, row))
    names = tuple(_name(contents, same[row]) for row in order[:_SHOWN_COPIES])
    classes = sorted({contents.classes[label] for _, label in places}, key=canonical)
    return Example(names, f"{len(same)} equal files of {', '.join(repr(name) for name in classes[:4])}")


def _classes(contents: Contents) -> Iterator[_Found]:
    counts = {name: _class_counts(contents, split) for name, split in contents.splits.items()}
    yield "empty-class", len(contents.empty), [Example((name,), f"in {split}") for split, name in contents.empty]
    explained = {name for _, name in contents.empty}
    if "val" in counts:
        train, val = ({name for name, count in counts[split].items() if count} for split in ("train", "val"))
        odd = sorted((train ^ val) - explained, key=canonical)
        yield "class-mismatch", len(odd), [Example((n,), f"only in {'train' if n in train else 'val'}") for n in odd]
    else:
        yield "no-validation", 1, ()
    there = sorted(((count, name) for name, count in counts["train"].items() if count), key=lambda each: each[0])
    yield "few-samples", *_counted([pair for pair in there if pair[0] < FEW_SAMPLES])
    yield "imbalance", *_counted([pair for pair in there if pair[0] * IMBALANCE <= there[-1][0]])
    yield "one-class", int(len(contents.classes) == 1), [Example(contents.classes)]
    alike: dict[str, list[str]] = {}
    for name in contents.classes:
        alike.setdefault(_folded(name), []).append(name)
    groups = [Example(tuple(names)) for names in alike.values() if len(names) > 1]
    yield "similar-classes", sum(len(group.names) for group in groups), groups


def _class_counts(contents: Contents, split: Split) -> dict[str, int]:
    counts = np.bincount(split.labels, minlength=len(contents.classes))
    return dict(zip(contents.classes, counts.tolist(), strict=True))


def _counted(pairs: Sequence[tuple[int, str]]) -> tuple[int, list[Example]]:
    return len(pairs), [Example((name,), f"{count} samples") for count, name in pairs[:MAX_EXAMPLES]]


def _folded(name: str) -> str:
    """Equal for names that people would take for the same; digits stay apart: `1-1` is not `11`."""
    plain = "".join(c for c in unicodedata.normalize("NFKC", name).casefold() if unicodedata.category(c) != "Cf")
    spaced = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])", " ", unicodedata.normalize("NFKC", plain))
    return re.sub(r"(?<!\d)[\s_]+|[\s_]+(?!\d)", "", spaced)


def _names(contents: Contents) -> Iterator[_Found]:
    tests: dict[str, Callable[[str], object]] = {
        "odd-characters": lambda name: not name.isprintable() and any(map(_is_invisible, name)),
        "not-unicode": lambda name: not name.isascii() and any("\udc80" <= c <= "\udcff" for c in name),
        "copy-names": lambda name: _COPY_NAME.search(os.path.splitext(name.rsplit("/", 1)[-1])[0]),
        "long-names": lambda name: (
            4 * len(name) >= _LONG_NAME_BYTES
            and any(len(part) >= _LONG_NAME_BYTES for part in canonical(name).split(b"/"))
        ),
    }
    found: dict[str, list[str]] = {finding: [] for finding in (*tests, "hidden-files", "not-in-a-class", "other-files")}
    for name in (name for split in contents.splits.values() for name in split.names):
        for finding, fits in tests.items():
            if fits(name):
                found[finding].append(name)
    for name in contents.others:
        hidden = name.startswith(".") or "/." in name
        image = _extension(name) in _EXTENSIONS
        found["hidden-files" if hidden else "not-in-a-class" if image else "other-files"].append(name)
    for finding, names in found.items():
        yield finding, len(names), [Example((name,)) for name in names[:MAX_EXAMPLES]]


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")


def describe(contents: Contents, examined: Examined, findings: Sequence[Finding]) -> dict[str, Any]:
    """The result of an audit as plain values. Counts and bytes are of all samples, the rest of those looked at."""
    rows = examined.rows[examined.rows["status"] == OK]
    severities = Counter(finding.severity for finding in findings)
    names = (_extension(name) for split in contents.splits.values() for name in split.names)
    return {
        "path": contents.path,
        "samples": sum(len(split) for split in contents.splits.values()),
        "looked_at": len(examined.rows),
        "decoded": len(rows),
        "classes": len(contents.classes),
        **{each + "s": severities[each] for each in ("problem", "warning", "note")},
        "findings": [asdict(finding) for finding in findings],
        "splits": {name: _describe_split(contents, split) for name, split in contents.splits.items()},
        "bytes": _describe_bytes(np.concatenate([split.lengths for split in contents.splits.values()])),
        "sizes": _describe_sizes(rows),
        "modes": {mode: int((rows["mode"] == code).sum()) for code, mode in enumerate(MODES) if code in rows["mode"]},
        "exif_rotated": int(rows["turned"].sum()),
        "formats": {kind: int((rows["kind"] == code).sum()) for code, kind in enumerate(KINDS) if code in rows["kind"]},
        "extensions": dict(Counter(f".{each}" if each else "(none)" for each in names).most_common(MAX_EXAMPLES)),
        "seconds": {
            "wall": examined.wall_seconds,
            "images_per_second": _rate(len(examined.rows), examined.wall_seconds),
            "read": _describe_stage(len(examined.rows), examined.read_seconds),
            "decode": _describe_stage(len(examined.rows), examined.decode_seconds),
        },
    }


def _describe_split(contents: Contents, split: Split) -> dict[str, Any]:
    counts = _class_counts(contents, split)
    there = [count for count in counts.values() if count]
    return {
        "samples": len(split),
        "bytes": int(split.lengths.sum()),
        "classes": len(there),
        "per_class": {"min": min(there), "median": float(np.median(there)), "max": max(there)} if there else None,
        "imbalance": max(there) / min(there) if there else None,
        "class_counts": counts,
    }


def _describe_bytes(lengths: NDArray[np.int64]) -> dict[str, Any]:
    low, high = int(lengths.min()), int(lengths.max())
    return {"total": int(lengths.sum()), "mean": float(lengths.mean()), "min": low, "max": high}


def _describe_sizes(rows: NDArray[np.void]) -> dict[str, Any] | None:
    if not len(rows):
        return None
    width, height = rows["width"].astype(np.int64), rows["height"].astype(np.int64)
    both, counts = np.unique(width << 32 | height, return_counts=True)
    most = int(both[counts.argmax()])
    return {
        **{
            name: {"min": int(side.min()), "median": float(np.median(side)), "max": int(side.max())}
            for name, side in (("width", width), ("height", height))
        },
        "different": len(both),
        "most_common": {"width": most >> 32, "height": most & 0xFFFFFFFF, "share": float(counts.max() / len(rows))},
        "decoded_bytes_mean": float((width * height * 3).mean()),
    }


def _describe_stage(images: int, seconds: float) -> dict[str, Any]:
    """Summed over threads, so the rate is that of one thread."""
    return {
        "seconds": seconds, "per_image": seconds / images if images else None,
        "images_per_second": _rate(images, seconds),
    }  # fmt: skip


def _rate(images: int, seconds: float) -> float | None:
    return images / seconds if images and seconds > 0 else None
