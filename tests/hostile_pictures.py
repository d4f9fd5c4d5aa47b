"""Pictures that are small as files and dear to decode, or end early: for the tests of several rooms."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def many_scans(count: int, side: int = 1024) -> bytes:
    """A progressive JPEG whose last refinement of one coefficient band is named `count` times. Flat: 60 bytes a scan."""
    data = encoded(Image.new("RGB", (side, side), (90, 120, 30)), progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + b"\xff\xd9"


def lying_header(width: int = 8000, height: int = 8000) -> bytes:
    data = bytearray(encoded(smooth(24, 20), quality=90))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def ends_early(image: Image.Image | None = None, share: float = 0.6, **options: object) -> bytes:
    """Whole segments and an end marker, but the data of the last rows is missing."""
    data = encoded(image or smooth(96, 80), quality=95, **options)
    first = data.index(b"\xff\xda")
    return data[: first + int(share * (len(data) - first))].rstrip(b"\xff") + b"\xff\xd9"


def flat_png(side: int, colour_type: int = 0) -> bytes:
    """8 bits of grey (0) or of each of RGB (2): side x side zeros, a thousand to a byte, made without holding them."""
    packer, row = zlib.compressobj(9), bytes(1 + side * (3 if colour_type == 2 else 1))
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    chunks = (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, colour_type, 0, 0, 0)), (b"IDAT", body), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
