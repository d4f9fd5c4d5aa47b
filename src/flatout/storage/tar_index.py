"""Where each member of an uncompressed tar lies: one pass over the headers, 512 bytes per member."""

import os
import re
import zlib
from collections.abc import Callable
from functools import partial

from flatout.errors import DamagedArchive, DataError, UserError

_BLOCK = 512
_COMPRESSED = {b"\x1f\x8b": "gzip -d", b"BZh": "bzip2 -d", b"\xfd7zXZ\x00": "xz -d", b"\x28\xb5\x2f\xfd": "zstd -d"}
_PAX_RECORD = re.compile(rb"(\d{1,10}) ([^=]+)=")
ReadAt = Callable[[int, int], bytes]
"""Length and offset, as os.pread has them; fewer bytes at the end."""
_MAX_EXTENSION_BYTES = 1 << 20
"""Long names and extended headers are kept in memory while they are read; no honest one comes near this."""


def index_tar(path: str) -> dict[str, tuple[int, int]]:
    """Name -> offset and length, regular members only; of members with one name the last counts, as tar has it."""
    try:
        with open(path, "rb", buffering=0) as file:
            return scan_tar(path, partial(os.pread, file.fileno()), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror}; check the path and its permissions") from None


def scan_tar(path: str, read: ReadAt, archive_bytes: int) -> dict[str, tuple[int, int]]:
    """The same of any archive that can be read at offsets, such as one within another or in a bucket."""
    _refuse_compressed(path, read(6, 0))
    return _scan(path, read, archive_bytes)


def _refuse_compressed(path: str, start: bytes) -> None:
    for magic, command in _COMPRESSED.items():
        if start.startswith(magic):
            raise UserError(
                f"{path} is compressed, and members are read by their offset; decompress it first: {command} {path}"
            )


def _scan(path: str, read: ReadAt, archive_bytes: int) -> dict[str, tuple[int, int]]:
    members: dict[str, tuple[int, int]] = {}
    extended: dict[bytes, bytes] = {}
    offset = 0
    while len(header := read(_BLOCK, offset)) == _BLOCK and header[0:1] + header[148:149] != b"\0\0":
        kind = _checked_kind(path, header, offset)
        size = _size(header, extended, kind)
        start = offset + _BLOCK
        if size < 0 or start + size > archive_bytes:
            raise DamagedArchive(
                f"{path}: the member at byte {offset} ends beyond the archive's {archive_bytes} bytes; copy it again"
            )
        if kind in b"xLK":
            extended |= _extension(path, kind, read, start, size)
        elif kind != b"g":
            if kind in b"0\x007S":
                name = _safe_name(path, _name(header, extended), kind, extended)
                if name and not name.endswith("/"):  # before POSIX, a folder was a file whose name ends in a slash
                    members[name] = (start, size)
            extended = {}
        offset = start + (size + _BLOCK - 1) // _BLOCK * _BLOCK
    return members


def _checked_kind(path: str, header: bytes, offset: int) -> bytes:
    # The low half of Adler-32 is the sum of the bytes, plus one, modulo 65521: a tenth of the time of sum().
    total = zlib.adler32(header[:148] + b"        " + header[156:]) & 0xFFFF
    try:
        valid = (int(header[148:156].split(b"\0")[0].strip() or b"-1", 8) + 1) % 65521 == total
    except ValueError:
        valid = False
    if not valid:
        raise DamagedArchive(f"{path} is not a tar, or is damaged at byte {offset}; make it again with: tar -cf")
    return header[156:157]


def _size(header: bytes, extended: dict[bytes, bytes], kind: bytes) -> int:
    """Of the bytes that follow the header, or -1 if no size can be read."""
    text = header[124:136]
    if kind in b"123456":  # links, devices, folders: nothing follows, whatever they claim
        return 0
    try:
        if b"size" in extended and kind not in b"xgLK":
            return int(extended[b"size"])
        if text[:1] == b"\x80":  # sizes beyond 8 GB, as GNU tar writes them
            return int.from_bytes(text[1:], "big")
        return int(text.split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _extension(path: str, kind: bytes, read: ReadAt, start: int, size: int) -> dict[bytes, bytes]:
    if size > _MAX_EXTENSION_BYTES:
        raise DamagedArchive(
            f"{path}: a header of {size} bytes, limit {_MAX_EXTENSION_BYTES}; make it again with: tar -cf"
        )
    data = read(size, start)
    if kind == b"L":
        return {b"path": data.rstrip(b"\0")}
    return _pax_records(data) if kind == b"x" else {}


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    at = 0
    while match := _PAX_RECORD.match(data, at):
        end = at + int(match.group(1))
        records[match.group(2)] = data[match.end() : end - 1]
        at = max(end, match.end())
    return records


def _name(header: bytes, extended: dict[bytes, bytes]) -> str:
    if b"path" in extended:
        return os.fsdecode(extended[b"path"])
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return os.fsdecode(prefix + b"/" + name if prefix else name)


def _safe_name(path: str, name: str, kind: bytes, extended: dict[bytes, bytes]) -> str:
    if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in extended):
        raise DamagedArchive(f"{path}: member {name!r} is stored sparse; make the archive again without --sparse")
    while name.startswith("./"):
        name = name[2:]
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise DamagedArchive(f"{path}: member {name!r} leads out of the archive; make it again with relative names")
    return name
