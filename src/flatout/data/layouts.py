"""Which objects of a store are samples, of which class and split: a pure function of their names.

Understood: `train/<class>/...` with `val/<class>/...` (one folder per class), the original Tiny-ImageNet layout
(`train/<wnid>/images/...`, `val/images/...` with `val/val_annotations.txt`), and `<class>/...` without splits.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flatout.errors import DataError

ANNOTATIONS = "val_annotations.txt"
_VALIDATION_NAMES = ("val", "valid", "validation", "test")


@dataclass
class Layout:
    """For every split, the sample names of every class; `root` is the folder inside the store they are under."""

    root: str
    train_prefix: str = ""  # train/ where there are splits
    splits: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def find_layout(names: Iterable[str], read_text: Callable[[str], str], where: str) -> Layout:
    """Sort names into splits and classes. `read_text` is asked for the annotation file only."""
    visible = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    root = _root(visible)
    inside = [name[len(root) :] for name in visible if name.startswith(root)]
    tops = {name.split("/", 1)[0] for name in inside if "/" in name}
    layout = Layout(root, "train/" if "train" in tops else "")
    layout.splits["train"] = _by_folder(inside, layout.train_prefix)
    if layout.train_prefix:
        for top in _VALIDATION_NAMES:
            if top in tops:
                layout.splits["val"] = _validation(inside, top, lambda name: read_text(root + name))
                break
    if not any(layout.splits["train"].values()):
        raise DataError(
            f"no samples in {where}: found {len(visible)} files but none in a folder per class; "
            "expected train/<class>/<image> or <class>/<image>"
        )
    return layout


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
