"""Named arrays in one file that is whole or refused: their SHA-256, then an uncompressed npz without pickles."""

import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.errors import BadFile
from flatout.machine.files import write_whole
from flatout.untrusted import MAX_ARRAYS_BYTES, read_bytes

Arrays = dict[str, NDArray[Any]]
_DIGEST_BYTES = 32


def write_arrays(path: Path, arrays: Arrays) -> None:
    """In one step; an OSError leaves what was there."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(path, hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue())


def read_arrays(path: Path) -> Arrays | None:
    """None where there is no file, or not one that is whole."""
    try:
        data = read_bytes(path, MAX_ARRAYS_BYTES)
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            return None
        with np.load(io.BytesIO(data[_DIGEST_BYTES:]), allow_pickle=False) as saved:
            if any(each.compress_type != zipfile.ZIP_STORED for each in saved.zip.infolist()):
                return None  # never written so; what it unfolds to has no limit
            return {name: saved[name] for name in saved.files}
    except (BadFile, OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile):
        return None


def pack_names(names: list[str] | tuple[str, ...]) -> NDArray[np.uint8]:
    """Names as one array of bytes; a zero byte ends each, which no path can hold."""
    return np.frombuffer(b"".join(os.fsencode(name) + b"\0" for name in names), np.uint8)


def unpack_names(blob: NDArray[np.uint8]) -> list[str]:
    return [os.fsdecode(name) for name in blob.tobytes().split(b"\0")[:-1]]
