"""ImageNet as it is downloaded: the tar of tars or the folder of tars, flat validation images, and their classes.

The samples are named as in the folder that everybody makes of it, `train/<wnid>/<file>` and `val/<wnid>/<file>`: the
same batches, whichever of the two is read.
"""

import csv
import io
import re
from collections.abc import Iterable

from flatout.data.source.formats.arrangement import Arrangement, Listing, Members
from flatout.data.source.formats.devkit import devkit_of_tar, read_wnids
from flatout.data.source.formats.numbered import number_of
from flatout.data.source.layouts import Layout
from flatout.errors import DataError
from flatout.storage.protocol import read_one

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
FLAT_IMAGE = "ILSVRC2012_val_"
_CLASS_TAR = re.compile(r"(?:^|/)(n\d{8})\.tar$")
_CLASS_FILE = re.compile(r"(?:^|/)train/(n\d{8})/([^/]+)$")
_VAL = re.compile(r"(?:^|/)(ILSVRC2012_val_(\d{8})\.JPEG)$")
_IN_CLASS = re.compile(r"(?:^|/)n\d{8}/[^/]+$")
_SOLUTION, _TRUTH, _META = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_MAP, _DEVKIT = "map_clsloc.txt", "ILSVRC2012_devkit_t12.tar.gz"
_MAX_DEVKIT_BYTES = 2**26


def looks_like_imagenet(telling: Iterable[str], names: Iterable[str]) -> bool:
    """Archives of classes, or validation images beside folders of classes and not in them."""
    flat = False
    for name in telling:
        if name.rsplit("/", 1)[-1] in (TRAIN_TAR, VAL_TAR) or _CLASS_TAR.search(name):
            return True
        flat = flat or bool(_VAL.search(name) and not _IN_CLASS.search(name))
    return flat and any(_CLASS_FILE.search(name) for name in names)


def arrange_imagenet(listing: Listing) -> Arrangement:
    members, layout = Members(listing), Layout("", "train/")
    train: dict[str, list[str]] = {}
    visible = sorted(listing.visible())
    _from_class_tars(members, train, visible)
    for name in visible:
        if found := _CLASS_FILE.search(name):
            _add(layout, train, found.group(1), f"train/{found.group(1)}/{found.group(2)}", name)
    if not train:
        raise DataError(
            f"{listing.where} has no training images of ImageNet; put {TRAIN_TAR}, its n*.tar or train/<wnid>/ there"
        )
    layout.splits["train"] = train
    val = _validation(listing, members, layout, visible)
    if val:
        layout.splits["val"] = val
    return members.arranged(layout)


def _add(layout: Layout, classes: dict[str, list[str]], wnid: str, sample: str, name: str) -> None:
    classes.setdefault(wnid, []).append(sample)
    layout.objects[sample] = name


def _from_class_tars(members: Members, train: dict[str, list[str]], names: list[str]) -> None:
    """Of a folder of n*.tar, or of one tar that holds them."""
    classes = [(found.group(1), name) for name in names if (found := _CLASS_TAR.search(name))]
    opened = members.opened(name for _, name in classes)
    tars = [(wnid, *each) for (wnid, _), each in zip(classes, opened, strict=True)]
    for outer, inside in members.opened(name for name in names if name.rsplit("/", 1)[-1] == TRAIN_TAR):
        for name, (offset, size) in sorted(inside.items()):
            if found := _CLASS_TAR.search(name):
                inner = outer.within(offset, size)
                tars.append((found.group(1), inner, inner.members()))
    for wnid, archive, inside in tars:
        for name, (offset, size) in inside.items():
            sample = f"train/{wnid}/{name.rsplit('/', 1)[-1]}"
            members.put(sample, archive, offset, size)
            train.setdefault(wnid, []).append(sample)


def _validation(listing: Listing, members: Members, layout: Layout, names: list[str]) -> dict[str, list[str]]:
    """Flat images with their classes from the devkit or Kaggle's table; images in folders of classes say it."""
    images = [(found.group(1), int(found.group(2)), name) for name in names if (found := _VAL.search(name))]
    opened = members.opened(name for name in names if name.rsplit("/", 1)[-1] == VAL_TAR)
    flat = any(not _IN_CLASS.search(name) for _, _, name in images) or bool(opened)
    classes_of = _truth(listing, names) if flat else {}
    val: dict[str, list[str]] = {}
    for base, number, name in images:
        wnid = name.split("/")[-2] if _IN_CLASS.search(name) else _class_of(classes_of, number, base)
        _add(layout, val, wnid, f"val/{wnid}/{base}", name)
    for archive, inside in opened:
        for name, (offset, size) in inside.items():
            if found := _VAL.search(name):
                wnid = _class_of(classes_of, int(found.group(2)), found.group(1))
                members.put(f"val/{wnid}/{found.group(1)}", archive, offset, size)
                val.setdefault(wnid, []).append(f"val/{wnid}/{found.group(1)}")
    return val


def _class_of(classes: dict[int, str], number: int, base: str) -> str:
    if number not in classes:
        raise DataError(f"{base} has no class: the ground truth has {len(classes)} lines; is it another dataset's?")
    return classes[number]


def _truth(listing: Listing, names: list[str]) -> dict[int, str]:
    """Number of a validation image -> its class."""
    found = {name.rsplit("/", 1)[-1]: name for name in names}
    if _SOLUTION in found:
        return _read_solution(listing.text(found[_SOLUTION]), found[_SOLUTION])
    truth, meta, table = None, None, None
    if _TRUTH in found:
        truth = listing.text(found[_TRUTH])
        meta = _bytes(listing, found[_META]) if _META in found else None
        table = listing.text(found[_MAP]) if _MAP in found else None
    elif _DEVKIT in found:
        truth, meta = devkit_of_tar(_bytes(listing, found[_DEVKIT]), found[_DEVKIT], _TRUTH, _META)
    if truth is None or (meta is None and table is None):
        raise DataError(
            f"{listing.where} has validation images but not their classes; put {_SOLUTION} (Kaggle), {_DEVKIT}, or "
            f"{_TRUTH} with {_META} beside them, or move them away to have a share of the training images held out"
        )
    wnids = _read_map(table) if meta is None and table is not None else read_wnids(meta or b"", _META)
    classes = {}
    for number, word in enumerate(truth.split(), 1):
        named = number_of(word)
        if named is None or named not in wnids:
            raise DataError(f"{_TRUTH} names the class {word[:40]!r}, which is not among the {len(wnids)} of {_META}")
        classes[number] = wnids[named]
    return classes


def _bytes(listing: Listing, name: str) -> bytes:
    size = listing.entries[name].bytes
    if size > _MAX_DEVKIT_BYTES:
        raise DataError(f"{name} has {size} bytes, limit {_MAX_DEVKIT_BYTES}; this is not the one of ImageNet")
    return read_one(listing.store, name)


def _read_solution(text: str, name: str) -> dict[int, str]:
    """Kaggle's table: ImageId, and a class with the box of each object; all objects of an image are of one class."""
    classes = {}
    for line, row in enumerate(csv.reader(io.StringIO(text)), 1):
        found = re.fullmatch(r"ILSVRC2012_val_(\d{8})", row[0]) if row else None
        words = row[1].split() if len(row) > 1 else []
        if found and words and re.fullmatch(r"n\d{8}", words[0]):
            classes[int(found.group(1))] = words[0]
        elif line > 1 and row:
            raise DataError(f"{name} line {line} is {','.join(row)[:60]!r}; expected ILSVRC2012_val_<number>,<wnid> …")
    return classes


def _read_map(text: str) -> dict[int, str]:
    """Lines of `<wnid> <ILSVRC2012_ID> <name>`."""
    rows = (line.split() for line in text.splitlines())
    return {number: row[0] for row in rows if len(row) > 1 and (number := number_of(row[1])) is not None}
