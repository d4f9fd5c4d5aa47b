"""What an audit finds: pure functions of what was kept of every sample. Each finding says what to do."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.data.audit.examination import (
    BOMB,
    BROKEN,
    EMPTY,
    KINDS,
    MAX_EXAMPLES,
    MODES,
    OK,
    UNREADABLE,
    Contents,
    Examined,
)
from flatout.data.audit.texts import FEW_SAMPLES, LONG_NAME_BYTES, TEXTS, Severity
from flatout.data.source.dataset import Split
from flatout.data.source.layouts import canonical

IMBALANCE = 10  # largest class over smallest from which on it is worth a warning
_SHOWN_COPIES = 6  # names in one example
_STATUS_IDS = {EMPTY: "empty-file", BOMB: "bomb", BROKEN: "undecodable", UNREADABLE: "unreadable"}
_EXTENSIONS = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif", "mpo"), "JPEG"),
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), "PPM"),
    **{name: name.upper() for name in ("png", "webp", "bmp", "gif")},
}
_COPY_NAME = re.compile(r"(?i)^copy of .|.(?: ?\(\d{1,3}\)|[ _-]+copy(?: ?\d+| ?\(\d+\))?)$")


@dataclass(frozen=True)
class Example:
    names: tuple[str, ...]  # of samples, files or classes; several where they belong together
    detail: str = ""


@dataclass(frozen=True)
class AuditFinding:
    """One kind of thing that is wrong or worth knowing."""

    id: str
    severity: Severity
    what: str
    count: int
    examples: tuple[Example, ...]
    do: str


def judge(contents: Contents, examined: Examined) -> list[AuditFinding]:
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
        AuditFinding(each, severity, what, found[each][0], tuple(islice(found[each][1], MAX_EXAMPLES)), do)
        for each, (severity, what, do) in TEXTS.items()
        if each in found
    ]


_Found = tuple[str, int, Iterable[Example]]


def _name(contents: Contents, row: np.void) -> str:
    split = next(islice(contents.splits.values(), int(row["split"]), None))
    return split.names[int(row["id"])]


def _bad_content(contents: Contents, examined: Examined) -> Iterator[_Found]:
    for status, finding in _STATUS_IDS.items():
        where = np.flatnonzero(examined.rows["status"] == status)
        yield (
            finding,
            len(where),
            [
                Example((_name(contents, examined.rows[row]),), examined.reasons.get(row, ""))
                for row in where[:MAX_EXAMPLES].tolist()
            ],
        )


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
    groups = [Example(tuple(names), " is not ".join(map(ascii, names))) for names in alike.values() if len(names) > 1]
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
            4 * len(name) >= LONG_NAME_BYTES
            and any(len(part) >= LONG_NAME_BYTES for part in canonical(name).split(b"/"))
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


def describe(contents: Contents, examined: Examined, findings: Sequence[AuditFinding]) -> dict[str, Any]:
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
        "seconds": seconds,
        "per_image": seconds / images if images and seconds else None,
        "images_per_second": _rate(images, seconds),
    }


def _rate(images: int, seconds: float) -> float | None:
    return images / seconds if images and seconds > 0 else None
