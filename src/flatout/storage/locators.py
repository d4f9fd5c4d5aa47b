"""What tells one version of an object from another without reading it: a digest of what its store says of it.

Equal locators are proof of equal bytes. Unequal ones prove nothing: the bytes may still be the same, and reading them
tells. NO_LOCATOR is that of an object of which too little is known; it is equal to nothing, not even to itself.
"""

import os
import struct
from collections.abc import Mapping
from typing import Any

import xxhash

LOCATOR_BYTES = 16
NO_LOCATOR = bytes(LOCATOR_BYTES)
_FILE = struct.Struct("<qqqQ")


def file_locator(status: os.stat_result, within: bytes = b"") -> bytes:
    """Of a file, or of a part of it. The inode's time of change is among it, which no program can set back: a file
    written over is told from the old one even where its size and its own time were restored."""
    told = _FILE.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)  # as native/identity.c
    return xxhash.xxh3_128_digest(told + within)


def object_locator(origin: str, name: str, meta: Mapping[str, Any]) -> bytes:
    """Of an object as a listing has it. The time is among it for stores whose ETag is not of the content."""
    etag, version = meta.get("e_tag"), meta.get("version")
    if (not etag and not version) or str(etag).startswith("W/"):  # a weak ETag promises no equal bytes
        return NO_LOCATOR
    told = (origin, name, etag, version, meta["size"], meta.get("last_modified"))
    return xxhash.xxh3_128_digest("\0".join(map(str, told)).encode("utf-8", "surrogateescape"))
