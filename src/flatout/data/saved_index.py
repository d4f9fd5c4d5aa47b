"""The index of a large folder, kept from one start to the next: 200,000 files are listed once, not every time.

It is used only while nothing it depends on was changed since: adding, removing or renaming a file changes its folder's
time of change, and the annotation file has its own. An image overwritten in place is not noticed; its size in the
fingerprint is then the old one.
"""

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.data.budgets import cache_folder

LEAST_FILES = 20_000  # below that listing takes a moment
_DIGEST_BYTES = 32  # SHA-256 of the rest of the file: a damaged index is made again
_RACY_NS = 2 * 10**9  # a folder changed this recently may change again within the clock's grain

Index = dict[str, NDArray[Any]]


def load_index(root: str) -> Index | None:
    """The saved arrays, if they are whole and still describe the folder."""
    with suppress(OSError):
        data = _path(root).read_bytes()
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            return None
        with np.load(io.BytesIO(data[_DIGEST_BYTES:]), allow_pickle=False) as saved:
            index = {name: saved[name] for name in saved.files}
        folders = unpack_names(index["folders"])
        if index["version"] == 1 and [_changed_ns(folder) for folder in folders] == index["changed_ns"].tolist():
            return index
    return None


def save_index(root: str, folders: list[str], index: Index, listed_ns: int) -> None:
    """Keep the arrays for the next start; a folder changed since just before it was listed is not worth the risk."""
    path = _path(root)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    changed = [_changed_ns(folder) for folder in folders]
    if max(changed, default=0) > listed_ns - _RACY_NS:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: Index = {"version": np.array(1), "folders": pack_names(folders), "changed_ns": np.array(changed)}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays, **index)
        temporary.write_bytes(hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue())
        os.replace(temporary, path)
    except OSError:  # a full disk or one that may not be written: listed next time
        with suppress(OSError):
            temporary.unlink()


def pack_names(names: list[str] | tuple[str, ...]) -> NDArray[np.uint8]:
    """Names as one array of bytes; a zero byte ends each, which no path can hold."""
    return np.frombuffer(b"".join(os.fsencode(name) + b"\0" for name in names), np.uint8)


def unpack_names(blob: NDArray[np.uint8]) -> list[str]:
    return [os.fsdecode(name) for name in blob.tobytes().split(b"\0")[:-1]]


def _path(root: str) -> Path:
    digest = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return cache_folder() / "index" / f"{digest}.npz"


def _changed_ns(folder: str) -> int:
    return os.stat(folder).st_mtime_ns
