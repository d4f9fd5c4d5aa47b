"""The classes of a dataset, checked before a sample is read, and those that a recipe asks for."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.layouts import Layout, canonical, holds_images
from flatout.errors import BadFile, DataError
from flatout.storage.protocol import Store
from flatout.untrusted import MAX_RECORD_BYTES, blamed_as, open_text, parse_json

Wanted = int | str | list[str] | None


def refuse_empty_classes(store: Store, layout: Layout, where: str) -> None:
    """A class folder without files is not among the objects; a local store can still show it."""
    for name, members in layout.splits["train"].items():
        if not holds_images(members):
            raise DataError(
                f"class {name!r} in {where} has no images: it holds {members[0]!r}; add images or remove the folder"
            )
    folder = store.local_path(layout.root + layout.train_prefix)
    if folder is None or not os.path.isdir(folder):
        return
    found = {
        item.name for item in os.scandir(folder) if item.is_dir(follow_symlinks=False) and not item.name.startswith(".")
    }
    empty = sorted(found - layout.splits["train"].keys() - set(layout.without_images))
    if empty:
        raise DataError(
            f"class {empty[0]!r} in {where} has no samples ({len(empty)} of {len(found)} classes are empty); "
            "add images or remove the folder"
        )


def compare_class_maps(train: list[str], val: list[str], where: str, both_whole: bool = True) -> None:
    """`both_whole`: a class without validation samples is wrong too, as an empty folder is."""
    only_train, only_val = sorted(set(train) - set(val)) if both_whole else [], sorted(set(val) - set(train))
    if only_train or only_val:
        first = f"{only_val[0]!r} is only in val" if only_val else f"{only_train[0]!r} is only in train"
        raise DataError(
            f"train and val of {where} have different classes: {first} ({len(only_train)} only in train, "
            f"{len(only_val)} only in val); labels would not match. Make both hold the same {len(train)} classes"
        )


def read_class_list(path: str) -> list[str]:
    """One name on each line, or a JSON list; a line may say more after the name, as LOC_synset_mapping.txt does."""
    try:
        with blamed_as(DataError), open_text(Path(path).expanduser(), MAX_RECORD_BYTES) as file:
            text = file.read().removeprefix("\ufeff")
    except OSError as error:
        raise DataError(f"data.classes is {path!r}, which cannot be read: {error.strerror}; check the path") from None
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    names = parse_names(text if path.lower().endswith(".json") else without_comments, path)
    if not names:
        raise DataError(f"data.classes is {path!r}, which lists no classes; write one name on each line")
    return names


def parse_names(text: str, path: str) -> list[str] | None:
    """One on each line, or a JSON list where the path ends so; None for other JSON."""
    if not path.lower().endswith(".json"):
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        names = parse_json(text, path)
    except BadFile:
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def listed_classes(wanted: Wanted) -> int | list[str] | None:
    """As a service takes them, which has no such file."""
    return read_class_list(wanted) if isinstance(wanted, str) else wanted


def kept_classes(
    known: tuple[str, ...], wanted: Wanted, unlisted: str, labels: NDArray[np.int64]
) -> tuple[list[str], tuple[str, ...]]:
    """Names in order, and what is to be said of those that are left out."""
    if isinstance(wanted, list | str):
        names = _matched(known, wanted if isinstance(wanted, list) else read_class_list(wanted), wanted)
        left_out = [name for name in known if name not in set(names)]
        if left_out and unlisted == "refuse":
            raise DataError(_describe(left_out, known, labels) + "; add them, or set data.unlisted=drop")
        return names, (_describe(left_out, known, labels) + ", which are left out",) if left_out else ()
    if wanted is not None and wanted > len(known):
        raise DataError(f"data.classes is {wanted} but the dataset has {len(known)}; set it to at most {len(known)}")
    return list(known[:wanted]), ()


def _describe(left_out: Sequence[str], known: tuple[str, ...], labels: NDArray[np.int64]) -> str:
    counts = np.bincount(labels, minlength=len(known))
    samples = sum(int(counts[known.index(name)]) for name in left_out)
    shown = ", ".join(map(repr, left_out[:3])) + (", …" if len(left_out) > 3 else "")
    return f"{samples} samples are of {len(left_out)} classes that data.classes does not name ({shown})"


def _matched(known: tuple[str, ...], wanted: list[str], given: list[str] | str) -> list[str]:
    if not wanted:
        raise DataError(f"data.classes is an empty list; name some of the {len(known)} classes, or use null for all")
    there = set(known)
    from_file = isinstance(given, str)
    names = [each if each in there or not from_file else each.split()[0] for each in wanted]
    unknown = next((name for name in names if name not in there), None)
    if unknown is not None:
        where = f"data.classes ({given})" if from_file else "data.classes"
        raise DataError(f"{where} names {unknown!r}, which is not among the {len(known)} classes")
    return sorted(set(names), key=canonical)
