"""A batch as bytes: a header, named arrays and metadata. No pickle, and no copy to read it.

    header (128 bytes) | arrays, each on a 64-byte boundary | their table and the metadata as JSON

The header is written last: a buffer whose writer was killed does not have the header of the batch it should hold. The
JSON is the same for most batches of a stream and is parsed once; values that differ go into arrays.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json  # a third of the time of `json`

from flatout.errors import BadBundle, NoSpace

HEADER = struct.Struct("<8sQQ32s32sQ")  # magic and version; ends of arrays and metadata; key; checksum; sum_every
HEADER_BYTES = 128
_MAGIC = b"FLATOUT\x03"
_ALIGN = 64
_MOST_ARRAYS, _MOST_AXES = 64, 8
_DTYPES = {name: np.dtype(name) for name in ("|u1", "|i1", "|b1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")}
_BLOCK_WORDS = 512  # of 64 bits, 4 KB: numpy sums such rows at the speed of memory
_FEW_BLOCKS = 256  # a batch of at most this many is summed whole
SUM_EVERY = 32
"""Of a large batch in mapped memory one block in so many is summed. Memory keeps what was written; the header (written
last) and these sums show that it was written, and all of it."""


@dataclass(frozen=True)
class Bundle:
    """Arrays on the memory of the buffer they were read from. `meta` is read-only, since bundles with equal JSON share
    one object."""

    arrays: dict[str, NDArray[Any]]
    meta: Mapping[str, Any]
    bytes: int


def capacity_for(array_bytes: int, arrays: int, meta_bytes: int) -> int:
    """Size of a buffer for so many arrays of so many bytes in all, with header, alignment and metadata."""
    return HEADER_BYTES + array_bytes + (arrays + 1) * _ALIGN + meta_bytes


def payload(buffer: memoryview) -> NDArray[np.uint8]:
    """The part of a buffer in which arrays may be made in place: `write_bundle` does not copy those."""
    return np.frombuffer(buffer, np.uint8)[HEADER_BYTES:]


def write_bundle(
    buffer: memoryview, key: bytes, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], sum_every: int = 1
) -> int:
    """Put a batch into the buffer and return its length. Arrays that lie at the start of the payload stay there.

    With `sum_every` above 1 the checksum of a large batch is of one block in so many.
    """
    buffer[:HEADER_BYTES] = bytes(HEADER_BYTES)
    whole = np.frombuffer(buffer, np.uint8)
    base, end, table = _address(whole), HEADER_BYTES, []
    inside = {name for name, array in arrays.items() if array.size and np.may_share_memory(array, whole)}
    for name in sorted(arrays, key=lambda each: each not in inside):
        array = np.ascontiguousarray(arrays[name])
        start = _address(array) - base if name in inside else -(-end // _ALIGN) * _ALIGN
        if start < end or start + array.nbytes > len(whole):
            raise NoSpace(f"array {name!r} of {array.nbytes} bytes does not fit a buffer of {len(whole)} bytes")
        if name not in inside:
            whole[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        table.append([name, array.dtype.str, array.shape, start])
        end = start + array.nbytes
    words = to_json([table, meta])
    total = end + len(words)
    if total > len(whole):
        raise NoSpace(f"{len(words)} bytes of metadata do not fit a buffer of {len(whole)} bytes")
    buffer[end:total] = words
    said = checksum(buffer, end, total, key, sum_every)
    HEADER.pack_into(buffer, 0, _MAGIC, end, total, key, said, sum_every)
    return total


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])  # a quarter of the time of `array.ctypes.data`


def read_bundle(buffer: memoryview, key: bytes, verify: bool) -> Bundle:
    """The batch of this key, else a BadBundle. `verify` compares the checksum; else only the header is checked."""
    end, total = check_bundle(buffer, key, verify)
    try:
        table, meta = _parsed(bytes(buffer[end:total]), end)
        arrays = {name: np.ndarray(shape, kind, buffer, start) for name, kind, shape, start in table}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadBundle(f"the batch's table of arrays makes no sense: {error}") from None
    return Bundle(arrays, meta, total)


def check_bundle(buffer: memoryview, key: bytes, verify: bool) -> tuple[int, int]:
    """Ends of the arrays and of the whole, if this is the batch of that key; else a BadBundle."""
    if len(buffer) < HEADER_BYTES:
        raise BadBundle(f"a batch of {len(buffer)} bytes is shorter than its header of {HEADER_BYTES}")
    magic, end, total, found, said, sum_every = HEADER.unpack_from(buffer)
    if magic != _MAGIC or found != key or not HEADER_BYTES <= end <= total <= len(buffer):
        raise BadBundle("the buffer holds no batch, another batch, or more than it has room for")
    if verify and (not sum_every or checksum(buffer, end, total, key, sum_every) != said):
        raise BadBundle("the batch does not match its checksum")
    return end, total


def is_header_of(header: bytes, key: bytes, count: int) -> bool:
    """Whether a value of `count` bytes that begins with `header` is the whole batch of that key."""
    if len(header) < HEADER_BYTES:
        return False
    magic, _, total, found, _, _ = HEADER.unpack_from(header)
    return bool(magic == _MAGIC and total == count and found == key)


_Row = tuple[str, np.dtype[Any], tuple[int, ...], int]


@lru_cache(maxsize=64)
def _parsed(words: bytes, end: int) -> tuple[tuple[_Row, ...], Mapping[str, Any]]:
    """Name, type, shape and offset of the arrays, all of them before `end`; and the metadata."""
    table, meta = from_json(words)
    if not isinstance(meta, dict):
        raise TypeError(f"metadata of type {type(meta).__name__}")
    return tuple(_row(end, *row) for row in table[:_MOST_ARRAYS]), MappingProxyType(meta)


def _row(end: int, name: str, dtype: str, shape: list[int], start: int) -> _Row:
    if dtype not in _DTYPES or len(shape) > _MOST_AXES or not all(type(each) is int and each >= 0 for each in shape):
        raise ValueError(f"array {str(name)[:40]!r} of type {str(dtype)[:10]!r} and shape {str(shape)[:60]}")
    kind = _DTYPES[dtype]
    if type(start) is not int or start < HEADER_BYTES or start + prod(shape) * kind.itemsize > end:
        raise ValueError(f"array {name!r} reaches past the batch")
    return str(name), kind, tuple(shape), start


def checksum(buffer: memoryview, end: int, total: int, key: bytes, sum_every: int) -> bytes:
    """Digest of the sums of blocks of 4 KB: finds torn, truncated and foreign bytes at the speed of memory.

    Of a large batch one block in `sum_every` is summed, others for another key: damage to that many blocks in a row is
    always found. No protection against forged bytes: a process that can write to the buffer can write the header too.
    """
    digest = hashlib.blake2b(struct.pack("<QQQ", end, total, sum_every) + key, digest_size=32)
    blocks = (total - HEADER_BYTES) // (8 * _BLOCK_WORDS)
    every = 1 if blocks <= _FEW_BLOCKS else min(sum_every, blocks)
    words = np.frombuffer(buffer, "<u8", blocks * _BLOCK_WORDS, HEADER_BYTES)
    digest.update(words.reshape(-1, _BLOCK_WORDS)[key[0] % every :: every].sum(axis=1).data)
    digest.update(buffer[HEADER_BYTES + words.nbytes : total])
    return digest.digest()
