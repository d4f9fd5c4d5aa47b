"""The index of a large folder, kept from one start to the next: 200,000 files are listed once, not every time.

It is used only while nothing it depends on was changed since: adding, removing or renaming a file changes its folder's
time of change, and the annotation file has its own. It says which files are there and what their labels are; their
sizes and locators are looked at anew, so that an image overwritten in place is noticed.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from flatout.data.source.array_file import Arrays, pack_names, read_arrays, unpack_names, write_arrays
from flatout.machine.budgets import cache_folder

LEAST_FILES = 20_000  # below that listing takes a moment
_RACY_NS = 2 * 10**9  # a folder changed this recently may change again within the clock's grain


def load_index(root: str) -> Arrays | None:
    """The saved arrays, if they are whole and still describe the folder."""
    index = read_arrays(_path(root))
    with suppress(OSError):
        if index is not None and index["version"] == 1:
            folders = unpack_names(index["folders"])
            if [_changed_ns(folder) for folder in folders] == index["changed_ns"].tolist():
                return index
    return None


def save_index(root: str, folders: list[str], index: Arrays, listed_ns: int) -> None:
    """Keep the arrays for the next start; a folder changed since just before it was listed is not worth the risk."""
    path = _path(root)
    changed = [_changed_ns(folder) for folder in folders]
    if max(changed, default=0) > listed_ns - _RACY_NS:
        return
    arrays: Arrays = {"version": np.array(1), "folders": pack_names(folders), "changed_ns": np.array(changed)}
    with suppress(OSError):  # a full disk or one that may not be written: listed next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, arrays | index)


def _path(root: str) -> Path:
    digest = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return cache_folder() / "index" / f"{digest}.npz"


def _changed_ns(folder: str) -> int:
    return os.stat(folder).st_mtime_ns
