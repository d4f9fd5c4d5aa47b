"""A batch as bytes: named arrays and a little metadata behind a fixed header. No pickle, no copy to read it.

    header (128 bytes) | arrays, each on a 64-byte boundary | their table as JSON | metadata as JSON

The header is written last, so a buffer that somebody died in never holds the header of the batch it should hold.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json  # a third of the time of `json`, for every batch of every job

from flatout.errors import BadBundle, NoSpace

HEADER = struct.Struct("<8sQQQ32s32sQ")  # magic and version; ends of arrays, metadata, table; key; checksum; of what
HEADER_BYTES = 128
_MAGIC = b"FLATOUT\x02"
_ALIGN = 64
_MOST_ARRAYS, _MOST_AXES = 64, 8
_DTYPES = {name: np.dtype(name) for name in ("|u1", "|i1", "|b1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")}
_BLOCK_WORDS = 2048  # of 64 bits: sums over 16 KB at a time run at the speed of memory
_FEW_BLOCKS = 64  # are summed all, whatever was asked for
SUM_EVERY = 8
"""Of a large batch in mapped memory one block in so many is summed. What is there stays as it was written; that it was
written, and all of it, is what has to be found out, and the header (written last) and these sums do."""


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


def write_bundle(
    buffer: memoryview, key: bytes, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], sum_every: int = 1
) -> int:
    """Put a batch into the buffer and return its length. Arrays that lie at the start of the payload stay there.

    With `sum_every` above 1 the checksum of a large batch is of one block in so many.
    """
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
    rows, words = to_json(table), to_json(meta)
    middle, total = end + len(rows), end + len(rows) + len(words)
    if total > len(whole):
        raise NoSpace(f"{total - end} bytes of metadata do not fit a buffer of {len(whole)} bytes")
    buffer[end:total] = rows + words
    ends = (end, total, middle)
    HEADER.pack_into(buffer, 0, _MAGIC, *ends, key, checksum(buffer, ends, key, sum_every), sum_every)
    return total


def read_bundle(buffer: memoryview, key: bytes, verify: bool) -> Bundle:
    """Arrays on the buffer's memory. `verify` sums it; without, the header must still be right for the key."""
    end, total, middle = check_bundle(buffer, key, verify)
    try:
        table = _table(bytes(buffer[end:middle]), end)
        arrays = {name: np.ndarray(shape, kind, buffer, start) for name, kind, shape, start in table}
        return Bundle(arrays, dict(from_json(bytes(buffer[middle:total]))), total)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadBundle(f"the batch's table of arrays makes no sense: {error}") from None


def check_bundle(buffer: memoryview, key: bytes, verify: bool) -> tuple[int, int, int]:
    """Ends of the arrays, of the whole and of the table in between, if this is the batch of that key."""
    if len(buffer) < HEADER_BYTES:
        raise BadBundle(f"a batch of {len(buffer)} bytes is shorter than its header of {HEADER_BYTES}")
    magic, end, total, middle, found, said, sum_every = HEADER.unpack_from(buffer)
    if magic != _MAGIC or found != key or not HEADER_BYTES <= end <= middle <= total <= len(buffer):
        raise BadBundle("the buffer holds no batch, another batch, or more than it has room for")
    if verify and (not sum_every or checksum(buffer, (end, total, middle), key, sum_every) != said):
        raise BadBundle("the batch does not match its checksum")
    return end, total, middle


@lru_cache(maxsize=64)  # a job's batches are all of the same shape
def _table(words: bytes, end: int) -> tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]:
    """Name, type, shape and place of arrays that lie before `end`."""
    return tuple(_row(end, *row) for row in from_json(words)[:_MOST_ARRAYS])


def _row(
    end: int, name: str, dtype: str, shape: list[int], start: int
) -> tuple[str, np.dtype[Any], tuple[int, ...], int]:
    if dtype not in _DTYPES or len(shape) > _MOST_AXES or not all(type(each) is int and each >= 0 for each in shape):
        raise ValueError(f"array {str(name)[:40]!r} of type {str(dtype)[:10]!r} and shape {str(shape)[:60]}")
    kind = _DTYPES[dtype]
    if type(start) is not int or start < HEADER_BYTES or start + prod(shape) * kind.itemsize > end:
        raise ValueError(f"array {name!r} reaches past the batch")
    return str(name), kind, tuple(shape), start


def checksum(buffer: memoryview, ends: tuple[int, int, int], key: bytes, sum_every: int) -> bytes:
    """Digest of the sums of blocks of 16 KB: finds torn, truncated and foreign bytes at the speed of memory.

    Of a large batch it may be one block in `sum_every`, others for another key: a stretch of so many blocks is still
    found for certain. It is no proof against somebody who forges bytes on purpose; who can write to the cache can
    write the header too.
    """
    digest = hashlib.blake2b(struct.pack("<QQQQ", *ends, sum_every) + key, digest_size=32)
    blocks = (ends[1] - HEADER_BYTES) // (8 * _BLOCK_WORDS)
    every = 1 if blocks <= _FEW_BLOCKS else min(sum_every, blocks)
    words = np.frombuffer(buffer, "<u8", blocks * _BLOCK_WORDS, HEADER_BYTES)
    digest.update(words.reshape(-1, _BLOCK_WORDS)[key[0] % every :: every].sum(axis=1).data)
    digest.update(buffer[HEADER_BYTES + words.nbytes : ends[1]])
    return digest.digest()
