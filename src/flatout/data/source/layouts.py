"""Which objects of a store are samples, of which class and split: a pure function of their names.

Understood: `train/<class>/...` with `val/<class>/...` (one folder per class), the original Tiny-ImageNet layout
(`train/<wnid>/images/...`, `val/images/...` with `val/val_annotations.txt`), and `<class>/...` without splits.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, cast

from flatout import plugins
from flatout.errors import DataError

ANNOTATIONS = "val_annotations.txt"
BY_FOLDERS = "folders"
KNOWN_LAYOUTS = (
    "expected train/<class>/<image> with val/<class>/<image>, <class>/<image>, Tiny-ImageNet as it comes, a .tar or "
    ".zip of one of these, a table of labels, or a pack (all layouts: docs/data-layouts.md)"
)
_VALIDATION_NAMES = ("val", "valid", "validation", "test")
# by its ending, or without one; `lock` is what a run that trains in its own data folder has there
_MAYBE_IMAGE = re.compile(
    r"\.(avif|bmp|dib|gif|hei[cf]|ico|j2k|jfif|jp2|jpe|jpe?g|p[bgnp]m|png|tga|tiff?|webp)$|(^|/)(?!lock$)[^./]+$", re.I
)
Folders = dict[str, list[str]]
"""Names by the folder they are in, which ends with a slash: what holds for a folder is asked once for all its files."""
_TABLE = re.compile(r"\.(arrow|csv|jsonl?|parquet|tsv|xlsx)$", re.I)


@dataclass
class Layout:
    """For every split, the sample names of every class; `root` is the folder inside the store they are under."""

    root: str
    train_prefix: str = ""  # train/ where there are splits
    splits: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    without_images: tuple[str, ...] = ()  # folders beside the classes, such as the runs/ of who trains in here
    objects: dict[str, str] = field(default_factory=dict)
    """Sample name -> name of its object, where that is not the sample's name under the root."""

    def objects_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """The object of every sample."""
        if self.objects:
            return tuple(self.objects.get(name) or self.root + name for name in names)
        return tuple(self.root + name for name in names) if self.root else tuple(names)


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


def find_layout(visible: Folders, read_text: Callable[[str], str], where: str) -> Layout:
    """Sort names into splits and classes. `read_text` is asked for the annotation file only."""
    root = _root(visible)
    inside = {
        folder[len(root) :]: [name[len(root) :] for name in each] if root else each for folder, each in visible.items()
    }
    tops = {folder.split("/", 1)[0] for folder in inside if folder}
    layout = Layout(root, "train/" if "train" in tops else "")
    classes = _by_class(inside, layout.train_prefix)
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


def folder_of(name: str) -> str:
    return name[: name.rfind("/") + 1]


def by_folder(names: Iterable[str]) -> Folders:
    folders: Folders = {}
    for name in names:
        folder = folder_of(name)
        if folder in folders:
            folders[folder].append(name)
        else:
            folders[folder] = [name]
    return folders


def without_hidden(folders: Folders) -> Folders:
    """Neither hidden files nor files of hidden folders."""
    visible = {}
    for folder, names in folders.items():
        if not any(part.startswith(".") for part in folder.split("/")):
            hidden = folder + "."
            if shown := [name for name in names if not name.startswith(hidden)]:
                visible[folder] = shown
    return visible


def holds_images(names: Iterable[str]) -> bool:
    """Whether one of the names may be that of an image."""
    return any(_MAYBE_IMAGE.search(name) for name in names)


def _refuse_flat(folders: Folders, top: str, classes: dict[str, list[str]], where: str) -> None:
    if not classes:
        inside = [name for folder, names in folders.items() if folder.startswith(f"{top}/") for name in names]
        raise DataError(
            f"{top}/ of {where} has no folder per class: it holds {_list_found(inside)}; sort them into "
            f"{top}/<class>/ with the classes of train/, or move {top}/ away to have a share of train/ held out"
        )


def _refuse_other_layouts(folders: Folders, layout: Layout, where: str) -> None:
    classes = layout.splits["train"]
    names = chain.from_iterable(folders.values())
    if not any(holds_images(members) for members in classes.values()):
        raise DataError(f"no class folders of images in {where}: found {_list_found(list(names))}; {KNOWN_LAYOUTS}")
    table = next((name for name in sorted(names) if _TABLE.search(name)), None) if len(classes) == 1 else None
    if table:
        raise DataError(
            f"{where} holds {table!r} and one folder of images, {next(iter(classes))!r}: a table of labels has a "
            f"header with path and label, and paths relative to it; {KNOWN_LAYOUTS}"
        )


def _list_found(names: Sequence[str]) -> str:
    """How many files of which endings, with an example: 2 files (1 .csv, 1 .jpg), such as 'a/1.jpg'."""
    names = [name for name in names if not name.endswith("/lock")]  # of the run that asks
    if not names:
        return "nothing"
    kinds = Counter(os.path.splitext(name)[1] or "without ending" for name in names)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(4))
    return f"{len(names):,} file{'s' * (len(names) > 1)} ({counts}), such as {min(names)!r}"


def _root(folders: Folders) -> str:
    """Folders that hold everything (as in a tar of one folder) are stepped over."""
    root = ""
    files = sum(map(len, folders.values()))
    while True:
        tops = {folder[len(root) :].split("/", 1)[0] for folder in folders}
        if len(tops) != 1 or "train" in tops or root in folders:
            return root
        deeper = f"{root}{tops.pop()}/"
        direct = len(folders.get(deeper, ()))
        if 2 * direct > files and not any(folder.startswith(f"{deeper}train/") for folder in folders):
            return root  # its files are samples, not a README beside the classes: this is the only class
        root = deeper


def _by_class(folders: Folders, prefix: str) -> dict[str, list[str]]:
    """Names in the folders under `prefix`, by the first of these."""
    classes: dict[str, list[str]] = {}
    nested = set()  # classes that keep their images in a folder `images`
    for folder in folders:
        parts = folder[len(prefix) :].split("/") if folder.startswith(prefix) else []
        if len(parts) >= 3 and parts[1] == "images":
            nested.add(parts[0])
    for folder, names in folders.items():
        wnid = folder[len(prefix) :].split("/", 1)[0] if folder.startswith(prefix) else ""
        if wnid and (wnid not in nested or folder.startswith(f"{prefix}{wnid}/images/")):
            classes.setdefault(wnid, []).extend(names)
    return classes


def _validation(folders: Folders, top: str, read_text: Callable[[str], str]) -> dict[str, list[str]]:
    if f"{top}/{ANNOTATIONS}" not in folders.get(f"{top}/", ()):
        return _by_class(folders, f"{top}/")
    classes: dict[str, list[str]] = {}
    labels = _parse_annotations(read_text(f"{top}/{ANNOTATIONS}"), f"{top}/{ANNOTATIONS}")
    for folder, names in folders.items():
        for name in names if folder.startswith(f"{top}/images/") else ():
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


def all_canonical(names: Sequence[str]) -> list[bytes]:
    """Of many, at once."""
    found = os.fsencode("\0".join(names)).split(b"\0")
    return found if len(found) == len(names) else [canonical(name) for name in names]  # a name may hold a zero byte


def in_order(names: Sequence[str]) -> list[str]:
    """By their bytes."""
    ascii_only = "".join(names).isascii()  # then characters have the order of their bytes
    return sorted(names) if ascii_only else sorted(names, key=canonical)
