"""Which pictures are refused before they are decoded, and which for ending early: one rule, from a file's bytes alone.

Every path asks here: the compiled decoder declines what these limits refuse (native.h has the same numbers), Pillow,
packs, caches and the audit call these functions. No clock is asked, so that a batch is the same on a slow machine, on
every rank and after a resume; within these limits the slowest picture takes seconds:

1. Size. A file of more than MAX_FILE_BYTES is not read at all. At most MAX_PIXELS; half of that where the whole picture
   must be held (everything but JPEG, of which no more rows are held than a view needs).
2. Plausibility. A picture of more than SMALL_PIXELS may not unpack to more than MAX_EXPANSION times its file's bytes.
   Photographs have 5 to 50, scanned text 20 to 200; a header that lies, or a bomb, has 1,000 and more. A smaller one
   may say what it likes: it costs 16 MB at most.
3. Work. A JPEG has at most MAX_SCANS scans, of MAX_SCAN_PIXELS pixels in all: encoders write 1 to 20 scans.
4. A JPEG that ends early, in its middle or before its last row, is damaged: libjpeg only warns and paints the rest
   grey. What else libjpeg warns of and mends (bytes between segments, odd tables) is read as Pillow reads it.
"""

import re

from flatout.units import format_bytes

MAX_FILE_BYTES = 2**28
MAX_PIXELS = 2**26
SMALL_PIXELS = 2**22
MAX_EXPANSION = 256
MAX_SCANS = 100
MAX_SCAN_PIXELS = 2**30
_BITS = {"1": 1, "L": 8, "P": 8, "LA": 16, "PA": 16, "RGBA": 32, "RGBa": 32, "CMYK": 32, "I": 32, "F": 32}
_MARKER = re.compile(rb"\xff+([\x01-\xcf\xd8-\xfe])")  # neither a stuffed byte nor a restart


class Undecodable(Exception):
    """Why a sample goes to quarantine."""


class CostsTooMuch(Undecodable):
    """Refused before decoding: its size, its ratio of pixels to bytes or its number of scans is beyond the limits."""


def refuse_costly(width: int, height: int, mode: str, file_bytes: int, in_rows: bool) -> None:
    """`mode` as Pillow names it; `in_rows`: the picture need not be held whole."""
    pixels, limit = width * height, MAX_PIXELS if in_rows else MAX_PIXELS // 2
    if pixels > limit:
        raise CostsTooMuch(f"{width} x {height} pixels, more than the limit of {limit}; scale it down")
    unpacked = pixels * _BITS.get(mode, 16 if mode.startswith("I;16") else 24) // 8
    if pixels > SMALL_PIXELS and unpacked > MAX_EXPANSION * file_bytes:
        times = unpacked // max(1, file_bytes)
        raise CostsTooMuch(
            f"{width} x {height} pixels in {format_bytes(file_bytes)} is {times} times the file, "
            f"more than the limit of {MAX_EXPANSION} above {SMALL_PIXELS} pixels: a header that lies or a bomb; "
            "delete it, or scale it down if it is genuine"
        )


def refuse_scans(jpeg: bytes, pixels: int) -> None:
    limit = min(MAX_SCANS, MAX_SCAN_PIXELS // max(1, pixels))
    if jpeg.count(b"\xff\xda") <= limit:  # the rule for all but a few: thumbnails count too
        return
    scans = count_scans(jpeg)
    if scans > limit:
        raise CostsTooMuch(
            f"{scans} scans of {pixels} pixels, more than the limit of {limit}; save it again (as a baseline JPEG)"
        )


def count_scans(jpeg: bytes) -> int:
    """Up to the end of the picture; those of thumbnails inside of segments are not its own."""
    scans, at = 0, 2
    while (found := _MARKER.search(jpeg, at)) is not None and found[1] != b"\xd9":
        scans += found[1] == b"\xda"
        at = found.end() + int.from_bytes(jpeg[found.end() : found.end() + 2], "big")
    return scans


def raise_if_early(error: ValueError) -> None:
    """What libjpeg says of a file, judged by rule 4; of several faults it names the first."""
    if "premature end" in str(error).lower():
        raise Undecodable(f"broken image: {error}; fetch it again or delete it")
