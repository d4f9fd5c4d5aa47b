"""ImageNet's development kit: which class each number of its ground truth stands for, from a MATLAB file.

Level 5 MAT files are elements of a type, a length and bytes, some of them deflated. Only what meta.mat consists of is
read: a struct array `synsets` of numbers, texts and matrices.
"""

import re
import struct
import zlib
from collections.abc import Iterator

from flatout.errors import DataError
from flatout.storage.tar_index import scan_tar

_COMPRESSED, _MATRIX = 15, 14
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}
_CLASS_STRUCT, _CLASS_CHAR = 2, 4
_MAX_BYTES = 2**26
_MOST_DIMENSIONS = 32
_WNID = re.compile(r"n\d{8}")

Element = tuple[int, bytes]


def read_wnids(data: bytes, name: str) -> dict[int, str]:
    """ILSVRC2012_ID -> WNID of the training classes' synsets."""
    try:
        for kind, body in _elements(data[128:]):
            matrix = next(_elements(_inflated(body)), (0, b"")) if kind == _COMPRESSED else (kind, body)
            if matrix[0] == _MATRIX and (rows := _struct_rows(matrix[1])) is not None:
                return _wnids(rows, name)
    except (struct.error, ValueError, IndexError, UnicodeDecodeError, zlib.error, RecursionError):
        pass
    raise DataError(f"{name} is not the meta.mat of ImageNet's devkit; copy it again, or use LOC_val_solution.csv")


def _wnids(rows: list[dict[str, object]], name: str) -> dict[int, str]:
    found = {}
    for row in rows:
        number, wnid = row.get("ILSVRC2012_ID"), row.get("WNID")
        if isinstance(number, float) and number.is_integer() and isinstance(wnid, str) and _WNID.fullmatch(wnid):
            found[int(number)] = wnid
    if not found:
        raise ValueError(name)
    return found


def _inflated(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, _MAX_BYTES)


def _elements(data: bytes) -> Iterator[Element]:
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: its length stands in the upper half of the type
            yield kind & 0xFFFF, data[at + 4 : at + 4 + min(4, kind >> 16)]
            at += 8
            continue
        yield kind, data[at + 8 : at + 8 + size]
        at += 8 + size + (-size % 8 if kind != _COMPRESSED else 0)


def _struct_rows(body: bytes) -> list[dict[str, object]] | None:
    """The elements of a struct array; None for any other matrix."""
    parts = list(_elements(body))
    flags, dimensions = parts[0][1], struct.unpack(f"<{len(parts[1][1]) // 4}i", parts[1][1])
    if flags[0] != _CLASS_STRUCT:
        return None
    width, names = struct.unpack("<i", parts[3][1][:4])[0], parts[4][1]
    if len(dimensions) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(dimensions)} dimensions")
    if not 1 <= width <= 64:
        raise ValueError(f"a field name of {width} bytes")
    fields = [names[k : k + width].split(b"\0")[0].decode("ascii") for k in range(0, len(names), width)]
    count = 1
    for each in dimensions:
        count *= each
    values = [_value(each) for _, each in parts[5 : 5 + count * len(fields)]]
    if not fields or len(values) < count * len(fields):
        raise ValueError(f"{len(values)} values of {count} rows")
    return [
        dict(zip(fields, values[k : k + len(fields)], strict=True))
        for k in range(0, len(values) - len(fields) + 1, len(fields))
    ]


def _value(body: bytes) -> object:
    """A text, or the first number of a matrix; None for what is neither."""
    parts = list(_elements(body))
    if len(parts) < 4 or not parts[0][1]:
        return None
    kind, data = parts[3]
    if parts[0][1][0] == _CLASS_CHAR:
        return data.decode(_TEXTS.get(kind, "latin-1"))
    code = _NUMBERS.get(kind)
    size = struct.calcsize(code) if code else 0
    return float(struct.unpack_from(f"<{code}", data)[0]) if code and len(data) >= size else None


def devkit_of_tar(data: bytes, name: str, truth: str, meta: str) -> tuple[str | None, bytes | None]:
    """Ground truth and meta.mat of the devkit as it is downloaded; at most 64 MB of it are unpacked."""
    try:
        plain = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, _MAX_BYTES)
    except zlib.error as error:
        raise DataError(f"{name} cannot be unpacked ({error}); download it again") from None
    members = scan_tar(name, lambda length, offset: plain[offset : offset + length], len(plain))
    found = {each.rsplit("/", 1)[-1]: plain[start : start + size] for each, (start, size) in members.items()}
    text = found.get(truth)
    return (None if text is None else text.decode("ascii", "replace")), found.get(meta)
