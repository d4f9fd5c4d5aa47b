"""A batch as bytes: named arrays and a little metadata behind a fixed header. No pickle, no copy to read it.

    header (128 bytes) | arrays, each on a 64-byte boundary | metadata as JSON

The header is written last, so a buffer that somebody died in never holds the header of the batch it should hold.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json  # a third of the time of `json`, for every batch of every job

from flatout.errors import BadBundle, NoSpace

HEADER = struct.Struct("<8sQQQ32s32s")  # magic and version, end of arrays, end of metadata, zero, key, checksum
HEADER_BYTES = 128
_MAGIC = b"FLATOUT\x01"
_ALIGN = 64
_MOST_ARRAYS, _MOST_AXES = 64, 8
_DTYPES = {name: np.dtype(name) for name in ("|u1", "|i1", "|b1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")}
_LANES, _ROWS = 512, 256  # of 64-bit words: sums over 1 MB at a time run at the speed of memory


@dataclass(frozen=True)
class Bundle:
    """Arrays that lie in the buffer they were read from, and what was said about them."""

    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]
    bytes: int


def capacity_for(array_bytes: int, arrays: int, meta_bytes: int) -> int:
    """Room that arrays of so many bytes need, with alignment."""
    return HEADER_BYTES + array_bytes + (arrays + 1) * _ALIGN + meta_bytes


def payload(buffer: memoryview) -> NDArray[np.uint8]:
    """Where arrays may be made in place, so that `write_bundle` need not copy them."""
    return np.frombuffer(buffer, np.uint8)[HEADER_BYTES:]


def write_bundle(buffer: memoryview, key: bytes, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> int:
    """Put a batch into the buffer and return its length. Arrays that lie at the start of the payload stay there."""
    buffer[:HEADER_BYTES] = bytes(HEADER_BYTES)
    whole = np.frombuffer(buffer, np.uint8)
    base, end, table = whole.ctypes.data, HEADER_BYTES, []
    inside = {name for name, array in arrays.items() if 0 <= array.ctypes.data - base < len(whole) and array.size}
    for name in sorted(arrays, key=lambda each: each not in inside):
        array = np.ascontiguousarray(arrays[name])
        start = array.ctypes.data - base if name in inside else -(-end // _ALIGN) * _ALIGN
        if start < end or start + array.nbytes > len(whole):
            raise NoSpace(f"array {name!r} of {array.nbytes} bytes does not fit a buffer of {len(whole)} bytes")
        if name not in inside:
            whole[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        table.append([name, array.dtype.str, list(array.shape), start])
        end = start + array.nbytes
    words = to_json({"arrays": table, "meta": meta})
    if end + len(words) > len(whole):
        raise NoSpace(f"{len(words)} bytes of metadata do not fit a buffer of {len(whole)} bytes")
    whole[end : end + len(words)] = np.frombuffer(words, np.uint8)
    total = end + len(words)
    HEADER.pack_into(buffer, 0, _MAGIC, end, total, 0, key, checksum(buffer, end, total, key))
    return total


def read_bundle(buffer: memoryview, key: bytes, verify: bool) -> Bundle:
    """Arrays on the buffer's memory. `verify` reads all of it; without, the header must still be right for the key."""
    end, total = check_bundle(buffer, key, verify)
    try:
        document = from_json(bytes(buffer[end:total]))
        arrays = dict(_array(buffer, end, *row) for row in document["arrays"][:_MOST_ARRAYS])
        return Bundle(arrays, dict(document["meta"]), total)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadBundle(f"the batch's table of arrays makes no sense: {error}") from None


def check_bundle(buffer: memoryview, key: bytes, verify: bool) -> tuple[int, int]:
    """Ends of the arrays and of the whole, if this is the batch of that key."""
    if len(buffer) < HEADER_BYTES:
        raise BadBundle(f"a batch of {len(buffer)} bytes is shorter than its header of {HEADER_BYTES}")
    magic, end, total, _, found, said = HEADER.unpack_from(buffer)
    if magic != _MAGIC or found != key or not HEADER_BYTES <= end <= total <= len(buffer):
        raise BadBundle("the buffer holds no batch, another batch, or more than it has room for")
    if verify and checksum(buffer, end, total, key) != said:
        raise BadBundle("the batch does not match its checksum")
    return int(end), int(total)


def _array(buffer: memoryview, end: int, name: str, dtype: str, shape: list[int], start: int) -> tuple[str, Any]:
    if dtype not in _DTYPES or len(shape) > _MOST_AXES or not all(type(each) is int and each >= 0 for each in shape):
        raise ValueError(f"array {str(name)[:40]!r} of type {str(dtype)[:10]!r} and shape {str(shape)[:60]}")
    kind = _DTYPES[dtype]
    if type(start) is not int or start < HEADER_BYTES or start + prod(shape) * kind.itemsize > end:
        raise ValueError(f"array {name!r} reaches past the batch")
    return name, np.ndarray(shape, kind, buffer, start)


def checksum(buffer: memoryview, end: int, total: int, key: bytes) -> bytes:
    """Digest of the sums of 512 lanes over each megabyte: finds torn, truncated and foreign bytes at 10 GB/s.

    It is no proof against somebody who forges bytes on purpose; who can write to the cache can write the header too.
    """
    digest = hashlib.blake2b(struct.pack("<QQ", end, total) + key, digest_size=32)
    whole = (total - HEADER_BYTES) // (8 * _LANES) * (8 * _LANES)
    lanes = np.frombuffer(buffer, "<u8", whole // 8, HEADER_BYTES).reshape(-1, _LANES)
    for row in range(0, len(lanes), _ROWS):
        digest.update(lanes[row : row + _ROWS].sum(axis=0).data)
    digest.update(buffer[HEADER_BYTES + whole : total])
    return digest.digest()
