"""What may be wrong with the classes of a dataset before a sample is read."""

import os

from flatout.data.source.layouts import Layout, holds_images
from flatout.errors import DataError
from flatout.storage.protocol import Store


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
