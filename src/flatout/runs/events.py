"""Scalars of TensorBoard event files, read without TensorBoard.

A file is a sequence of records (length, checksum, bytes, checksum); each record is an `Event` message of protocol
buffers. Nothing in it is trusted: every length is checked against what is there. A file that was cut short or damaged
gives what comes before that place.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatout.untrusted import require_regular

_MOST_RECORD_BYTES = 64 << 20  # images and graphs may be in a record; scalars are 100 bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2  # types of a tensor's elements
Value = int | bytes


@dataclass(frozen=True)
class Scalar:
    """One value of one curve."""

    tag: str
    step: int
    time_unix: float
    value: float


class Malformed(Exception):
    """The bytes are no message."""


def read_scalars(path: Path) -> list[Scalar]:
    """Every scalar of one file, up to the first place that cannot be read."""
    found: list[Scalar] = []
    try:
        for record in _records(path):
            found += _scalars(record)
    except Malformed:
        pass
    return found


def _records(path: Path) -> Iterator[bytes]:
    require_regular(path)
    with path.open("rb") as file:
        while len(header := file.read(12)) == 12:
            (length,) = struct.unpack_from("<Q", header)
            if length > _MOST_RECORD_BYTES:
                raise Malformed
            body = file.read(length + 4)
            if len(body) < length + 4:
                return
            yield body[:length]


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field; fixed-size values as their bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = 8 if kind == _FIXED64 else 4
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind not in (_FIXED64, _FIXED32):
            raise Malformed
        if size > len(message) - at:
            raise Malformed
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed


def _scalars(record: bytes) -> Iterator[Scalar]:
    event = dict(_fields(record))  # wall_time = 1, step = 2, summary = 5
    time_unix, step, summary = _real(event.get(1)), event.get(2, 0), event.get(5)
    if time_unix is None or not isinstance(step, int) or not isinstance(summary, bytes):
        return
    for number, message in _fields(summary):
        if number == 1 and isinstance(message, bytes):
            value = dict(_fields(message))  # tag = 1, simple_value = 2, tensor = 8
            tag = value.get(1)
            figure = _real(value.get(2)) if 2 in value else _tensor(value.get(8))
            if isinstance(tag, bytes) and figure is not None and step < 1 << 63:
                yield Scalar(tag.decode("utf-8", "replace"), step, time_unix, figure)


def _tensor(message: Value | None) -> float | None:
    """The only element of a tensor, as TensorFlow 2 and Keras write scalars; None for any other tensor."""
    if not isinstance(message, bytes):
        return None
    fields = dict(_fields(message))  # dtype = 1, tensor_content = 4, float_val = 5, double_val = 6
    kind = fields.get(1)
    content = fields.get(4) or fields.get({_FLOAT: 5, _DOUBLE: 6}.get(kind if isinstance(kind, int) else 0, -1))
    wanted = {_FLOAT: 4, _DOUBLE: 8}.get(kind if isinstance(kind, int) else 0)
    return _real(content) if isinstance(content, bytes) and len(content) == wanted else None


def _real(value: Value | None) -> float | None:
    """A little-endian float or double."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        return None
    return float(struct.unpack("<d" if len(value) == 8 else "<f", value)[0])
