"""Which objects of a store are samples, of which class and split: a pure function of their names.

Understood: `train/<class>/...` with `val/<class>/...` (one folder per class), the original Tiny-ImageNet layout
(`train/<wnid>/images/...`, `val/images/...` with `val/val_annotations.txt`), and `<class>/...` without splits.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from flatout import plugins
from flatout.errors import DataError

ANNOTATIONS = "val_annotations.txt"
BY_FOLDERS = "folders"
"""The data.layout that is not the user's own."""
KNOWN_LAYOUTS = (
    "expected train/<class>/<image> with val/<class>/<image>, <class>/<image>, Tiny-ImageNet as it comes, a .tar of "
    "one of these, or a pack"
)
_VALIDATION_NAMES = ("val", "valid", "validation", "test")
# by its ending, or without one; `lock` is what a run that trains in its own data folder has there
_MAYBE_IMAGE = re.compile(
    r"\.(avif|bmp|dib|gif|hei[cf]|ico|j2k|jfif|jp2|jpe|jpe?g|p[bgnp]m|png|tga|tiff?|webp)$|(^|/)(?!lock$)[^./]+$", re.I
)
_TABLE = re.compile(r"\.(arrow|csv|jsonl?|parquet|tsv|xlsx)$", re.I)


@dataclass
class Layout:
    """For every split, the sample names of every class; `root` is the folder inside the store they are under."""

    root: str
    train_prefix: str = ""  # train/ where there are splits
    splits: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    without_images: tuple[str, ...] = ()  # folders beside the classes, such as the runs/ of who trains in here


class LayoutFinder(Protocol):
    """A layout of the user's own: `data.layout: ./file.py:find`, or an entry point of flatout.datasets."""

    def __call__(self, names: Iterable[str], read_text: Callable[[str], str], where: str) -> Layout:
        """`names` of all objects, relative to the store at `where`; `read_text` gives the contents of one."""
        ...


def users_layout(finder: str, names: Collection[str], read_text: Callable[[str], str], where: str) -> Layout:
    """What the user's function says, if it names classes of samples that are there."""
    find = cast(LayoutFinder, plugins.load("datasets", finder, "data.layout"))
    with plugins.blamed(f"data.layout is {finder!r}"):
        layout = find(names, read_text, where)
    if not isinstance(layout, Layout) or not layout.splits.get("train"):
        raise DataError(f"data.layout {finder!r} gave no classes of a split 'train' for {where}; return a Layout")
    for classes in layout.splits.values():
        absent = next((name for each in classes.values() for name in each if layout.root + name not in names), None)
        if absent is not None:
            raise DataError(f"data.layout {finder!r} names {layout.root + absent!r}, which is not in {where}")
    return layout


def find_layout(names: Iterable[str], read_text: Callable[[str], str], where: str) -> Layout:
    """Sort names into splits and classes. `read_text` is asked for the annotation file only."""
    visible = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    root = _root(visible)
    inside = [name[len(root) :] for name in visible if name.startswith(root)]
    tops = {name.split("/", 1)[0] for name in inside if "/" in name}
    layout = Layout(root, "train/" if "train" in tops else "")
    classes = _by_folder(inside, layout.train_prefix)
    if not layout.train_prefix:
        layout.without_images = tuple(name for name, members in classes.items() if not holds_images(members))
    layout.splits["train"] = {name: each for name, each in classes.items() if name not in layout.without_images}
    if layout.train_prefix:
        for top in _VALIDATION_NAMES:
            if top in tops:
                layout.splits["val"] = _validation(inside, top, lambda name: read_text(root + name))
                _refuse_flat(inside, top, layout.splits["val"], where)
                break
    _refuse_other_layouts(visible, layout, where)
    return layout


def holds_images(names: Iterable[str]) -> bool:
    """Whether one of the names may be that of an image."""
    return any(_MAYBE_IMAGE.search(name) for name in names)


def _refuse_flat(names: list[str], top: str, classes: dict[str, list[str]], where: str) -> None:
    if not classes:
        inside = [name for name in names if name.startswith(f"{top}/")]
        raise DataError(
            f"{top}/ of {where} has no folder per class: it holds {_list_found(inside)}; sort them into "
            f"{top}/<class>/ with the classes of train/, or move {top}/ away to have a share of train/ held out"
        )


def _refuse_other_layouts(names: list[str], layout: Layout, where: str) -> None:
    classes = layout.splits["train"]
    if not any(holds_images(members) for members in classes.values()):
        raise DataError(f"no class folders of images in {where}: found {_list_found(names)}; {KNOWN_LAYOUTS}")
    table = next((name for name in sorted(names) if _TABLE.search(name)), None) if len(classes) == 1 else None
    if table:
        raise DataError(
            f"{where} holds {table!r} and one folder of images, {next(iter(classes))!r}: labels are not read from "
            f"tables yet, the folder of an image is its class; {KNOWN_LAYOUTS}"
        )


def _list_found(names: Sequence[str]) -> str:
    """How many files of which endings, with an example: 2 files (1 .csv, 1 .jpg), such as 'a/1.jpg'."""
    names = [name for name in names if not name.endswith("/lock")]  # of the run that asks
    if not names:
        return "nothing"
    kinds = Counter(os.path.splitext(name)[1] or "without ending" for name in names)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(4))
    return f"{len(names):,} file{'s' * (len(names) > 1)} ({counts}), such as {min(names)!r}"


def _root(names: list[str]) -> str:
    """Folders that hold everything (as in a tar of one folder) are stepped over."""
    root = ""
    while True:
        tops = {name[len(root) :].split("/", 1)[0] for name in names}
        if len(tops) != 1 or "train" in tops or not all("/" in name[len(root) :] for name in names):
            return root
        deeper = f"{root}{tops.pop()}/"
        direct = sum(name.count("/", len(deeper)) == 0 for name in names)
        if 2 * direct > len(names) and not any(name.startswith(f"{deeper}train/") for name in names):
            return root  # its files are samples, not a README beside the classes: this is the only class
        root = deeper


def _by_folder(names: Iterable[str], prefix: str) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = {}
    nested: set[str] = set()  # classes that keep their images in a folder `images`
    for name in names:
        if name.startswith(prefix):
            parts = name[len(prefix) :].split("/")
            if len(parts) >= 2:
                classes.setdefault(parts[0], []).append(name)
            if len(parts) >= 3 and parts[1] == "images":
                nested.add(parts[0])
    for wnid in nested:
        classes[wnid] = [name for name in classes[wnid] if name.startswith(f"{prefix}{wnid}/images/")]
    return classes


def _validation(names: list[str], top: str, read_text: Callable[[str], str]) -> dict[str, list[str]]:
    if f"{top}/{ANNOTATIONS}" not in names:
        return _by_folder(names, f"{top}/")
    classes: dict[str, list[str]] = {}
    labels = _parse_annotations(read_text(f"{top}/{ANNOTATIONS}"), f"{top}/{ANNOTATIONS}")
    for name in names:
        if name.startswith(f"{top}/images/"):
            label = labels.get(name.rsplit("/", 1)[1])
            if label is None:
                raise DataError(f"{name} has no line in {top}/{ANNOTATIONS}; add its class there or remove the file")
            classes.setdefault(label, []).append(name)
    return classes


def _parse_annotations(text: str, name: str) -> dict[str, str]:
    labels = {}
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(f"{name} line {number} is {line[:60]!r}; expected <file><tab><class>")
        labels[columns[0]] = columns[1]
    return labels


def canonical(name: str) -> bytes:
    """The bytes of a name, the same on every store; names sort by them."""
    return os.fsencode(name)
