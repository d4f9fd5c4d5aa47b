"""Where each member of a zip lies: its central directory, read as what a stranger wrote.

Sizes are checked against the archive before anything is allocated by them. Members that overlap (the trick of zip
bombs), lead out of the folder, are encrypted or packed by rare methods are refused in one line.
"""

import stat
import struct
from typing import NamedTuple

from flatout.errors import DataError
from flatout.storage.archive_file import ArchiveFile

STORED, DEFLATED = 0, 8
MAX_DIRECTORY_BYTES = 2**30
"""Of 10 million files with long names."""
_END = struct.Struct("<4s4H2LH")
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_BYTES = _LOCAL.size
_ENCRYPTED, _UTF8 = 0x1, 0x800


class ZipMember(NamedTuple):
    offset: int  # of its own header, which its bytes follow
    stored_bytes: int
    bytes: int
    method: int
    crc: int


def index_zip(file: ArchiveFile) -> dict[str, ZipMember]:
    """Name -> member, regular files only; of members with one name the last counts, as unzip has it."""
    directory, shift = _directory(file)
    members: dict[str, ZipMember] = {}
    at, packed_bytes = 0, 0
    while at + _ENTRY.size <= len(directory) and directory[at : at + 4] == b"PK\1\2":
        fields = _ENTRY.unpack_from(directory, at)
        flags, method, crc, stored, size = fields[3], fields[4], *fields[7:10]
        lengths, attributes, offset = fields[10:13], fields[15], fields[16]
        start = at + _ENTRY.size
        raw, extra = directory[start : start + lengths[0]], directory[start + lengths[0] :][: lengths[1]]
        at = start + sum(lengths)
        stored, size, offset = _wide(extra, stored, size, offset)
        name = _safe_name(file.where, raw.decode("utf-8" if flags & _UTF8 else "cp437", "surrogateescape"))
        if name.endswith("/") or stat.S_ISLNK(attributes >> 16):
            continue
        _check(file, name, flags, method, stored, size, offset + shift)
        packed_bytes += stored
        members[name] = ZipMember(offset + shift, stored, size, method, crc)
    if at < len(directory):
        raise DataError(f"{file.where} has a damaged directory at its byte {at}; download or make it again")
    if packed_bytes > file.size:
        raise DataError(f"{file.where} has {file.size} bytes and members of {packed_bytes} that overlap; refusing it")
    return members


def data_offset(file: ArchiveFile, member: ZipMember, name: str) -> int:
    """Where the bytes themselves begin, behind a header whose length only it knows."""
    return member.offset + header_bytes(file.read_at(LOCAL_BYTES, member.offset), f"{file.where}: {name!r}")


def header_bytes(header: bytes, what: str) -> int:
    """Of the header before a member's bytes, name and extra fields included."""
    if len(header) < LOCAL_BYTES or header[:4] != b"PK\3\4":
        raise DataError(f"{what} is not where the zip's directory says; download or make it again")
    fields = _LOCAL.unpack_from(header)
    return LOCAL_BYTES + int(fields[9]) + int(fields[10])


def _directory(file: ArchiveFile) -> tuple[bytes, int]:
    """The central directory, and by how many bytes all offsets are to be shifted (a program before the archive)."""
    tail_at = max(0, file.size - _END.size - 0xFFFF)
    tail = file.read_at(file.size - tail_at, tail_at)
    found = tail.rfind(b"PK\5\6")
    if found < 0 or found + _END.size > len(tail):
        raise DataError(f"{file.where} is not a zip, or its end is missing; download it again (unzip -t tells)")
    end = _END.unpack_from(tail, found)
    size, offset, end_at = end[5], end[6], tail_at + found
    if (size, offset) == (0xFFFFFFFF, 0xFFFFFFFF) or 0xFFFFFFFF in (size, offset) or end[4] == 0xFFFF:
        place = file.read_at(_END64_PLACE.size, end_at - _END64_PLACE.size)
        if place[:4] == b"PK\6\7":
            wide = file.read_at(_END64.size, _END64_PLACE.unpack(place)[2])
            if len(wide) < _END64.size or wide[:4] != b"PK\6\6":
                raise DataError(f"{file.where} has a damaged end record; download it again")
            size, offset, end_at = (*_END64.unpack(wide)[8:10], _END64_PLACE.unpack(place)[2])
    if size > MAX_DIRECTORY_BYTES or size > end_at:
        raise DataError(f"{file.where} names a directory of {size} bytes, limit {MAX_DIRECTORY_BYTES}; refusing it")
    return file.read_at(size, end_at - size), end_at - size - offset


def _wide(extra: bytes, stored: int, size: int, offset: int) -> tuple[int, int, int]:
    """Sizes beyond 4 GB stand in an extra field, in this order, those only that do not fit."""
    at, values = 0, [size, stored, offset]
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            words = [int.from_bytes(extra[k : k + 8], "little") for k in range(at + 4, at + 4 + length - 7, 8)]
            values = [words.pop(0) if each == 0xFFFFFFFF and words else each for each in values]
            break
        at += 4 + length
    return values[1], values[0], values[2]


def _check(file: ArchiveFile, name: str, flags: int, method: int, stored: int, size: int, offset: int) -> None:
    what = f"{file.where}: {name!r}"
    if flags & _ENCRYPTED:
        raise DataError(f"{what} is encrypted; unzip it with its password, and use the folder")
    if method not in (STORED, DEFLATED):
        raise DataError(f"{what} is packed by method {method}; read are stored (0) and deflated (8): zip it again")
    if offset < 0 or offset + LOCAL_BYTES + stored > file.size or (method == STORED and stored != size):
        raise DataError(f"{what} ends beyond the archive's {file.size} bytes; it was cut, download it again")
    if size > 1032 * stored + 64:  # the most that deflate can do
        raise DataError(f"{what} claims {size} bytes from {stored}, which no deflate can do; refusing it")


def _safe_name(where: str, name: str) -> str:
    if "\\" in name and "/" not in name:  # some programs of Windows
        name = name.replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    if name.startswith("/") or ".." in name.split("/") or name[1:3] == ":/" or "\0" in name:
        raise DataError(f"{where}: member {name!r} leads out of the archive; make it again with relative names")
    return name
