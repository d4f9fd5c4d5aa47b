"""From the bytes of a file to RGB pixels, by one rule for every kind of image."""

import importlib.util
import io
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
import PIL
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from flatout.data.pixels.picture_limits import Undecodable as Undecodable
from flatout.data.pixels.picture_limits import raise_if_early, refuse_costly, refuse_scans

warnings.filterwarnings("ignore", module=r"PIL\.")  # what Pillow only warns of is read; what it refuses has a reason
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def _find_native() -> ModuleType | None:
    """The compiled fast path, unless it was not built or FLATOUT_NATIVE=0 asks to go without."""
    if os.environ.get("FLATOUT_NATIVE") == "0":
        return None
    try:
        from flatout.data.pixels import _native
    except ImportError:
        return None
    return _native if _native.ABI == 9 else None


def _check_huffman(compiled: ModuleType) -> bool:
    """Whether our Huffman decoder is in use: not if it gives other pixels than libjpeg's (docs/decisions/0001)."""
    ours = _pixels_of_test_pictures(compiled)
    compiled.own_huffman(False)
    agrees = ours == _pixels_of_test_pictures(compiled)
    in_use: bool = compiled.own_huffman(agrees)
    return in_use


def _pixels_of_test_pictures(compiled: ModuleType) -> list[bytes]:
    """Two JPEGs, each whole and a part of it, as the compiled decoder reads them."""
    y, x = np.mgrid[:96, :96]
    image = Image.fromarray(np.stack([x * y, 255 - x * 2, (x * 37 ^ y * 91) * 3], 2).astype(np.uint8))
    geometry = np.zeros((2, 27))
    geometry[:, 1] = 1.0, 1 / 3  # the centre: the share of the side that is kept
    found = []
    for options in ({"subsampling": "4:2:0", "optimize": True}, {"subsampling": "4:4:4", "restart_marker_blocks": 5}):
        file = io.BytesIO()
        image.save(file, "JPEG", **options)
        pixels, status = np.zeros((2, 3, 96, 96), np.uint8), np.ones(2, np.int32)
        compiled.load_slice([file.getvalue()] * 2, None, geometry, 96, 0, pixels, status)
        found.append(pixels.tobytes() + status.tobytes())
    return found


native = _find_native()
OWN_HUFFMAN = native is not None and _check_huffman(native)

PILLOW_13 = int(PIL.__version__.split(".")[0]) >= 13  # changed the order of its two passes
RESIZES_BY_TORCH = native is None and importlib.util.find_spec("torch") is not None
"""Without the compiled decoder Pillow's resize is half of the work, and torch's takes a quarter of its time. It differs
by 1 in a few pixels of a hundred, so which of them is in force is part of a view's digest."""


def decoder_name() -> str:
    """Which path is active: for env.json and the log."""
    if native is not None:
        huffman = "" if OWN_HUFFMAN else " with its own Huffman decoder"
        return f"compiled, libjpeg-turbo {native.LIBJPEG_VERSION}{huffman}"
    return f"simplejpeg and {'torch' if RESIZES_BY_TORCH else 'Pillow'} (not compiled)"


def is_jpeg(data: bytes | memoryview) -> bool:
    return bytes(data[:2]) == b"\xff\xd8"


def decode_pixels(data: bytes | memoryview) -> NDArray[np.uint8]:
    """RGB, [height, width, 3]. simplejpeg decodes plain JPEGs to the same pixels as Pillow, without the GIL."""
    whole = data if isinstance(data, bytes) else bytes(data)
    if is_jpeg(whole) and whole.find(b"Exif\0", 0, _scan_start(whole)) < 0:
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
            if space in ("Gray", "YCbCr", "RGB"):
                refuse_costly(width, height, "L" if space == "Gray" else "RGB", len(whole), in_rows=True)
                refuse_scans(whole, width * height)
                pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
                return pixels
        except ValueError as error:
            raise_if_early(error)  # else Pillow is asked too: it says what is wrong, or reads it all the same
    return np.asarray(decode_image(data))


def _scan_start(jpeg: bytes) -> int:
    """Where the pictures' own bytes begin, of which there are too many to search; the end where segments are odd."""
    at = 2
    while jpeg[at : at + 1] == b"\xff" and jpeg[at + 1 : at + 2] not in (b"\xda", b"\xff", b""):
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return at if jpeg[at : at + 2] == b"\xff\xda" else len(jpeg)


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image upright that has this EXIF orientation."""


class Shrunk(NamedTuple):
    """An upright RGB image, its size before it was shrunk, and by how much that was."""

    image: Image.Image
    width: int
    height: int
    shrink: int


def decode_image(data: bytes | memoryview) -> Image.Image:
    """RGB, upright. The type is read from the content; alpha is dropped; 16 bits keep their upper 8."""
    return decode_shrunk(data, None).image


def decode_shrunk(data: bytes | memoryview, choose_shrink: Callable[[int, int], int] | None) -> Shrunk:
    """As decode_image, but JPEGs at 1/2, 1/4 or 1/8 of their size where `choose_shrink` of width and height says so."""
    if len(data) == 0:
        raise Undecodable("empty file")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        refuse_image(image, data)
        drafted = None
        if image.format in ("JPEG", "MPO"):
            drafted = None if choose_shrink is None else _choose(image, choose_shrink)
            upright = _to_rgb(_decode_strictly(image, data, drafted[2] if drafted else 1))
        else:
            ImageOps.exif_transpose(image, in_place=True)  # else it copies those that are upright too
            upright = _to_rgb(image)
        return Shrunk(upright, *(drafted or (upright.width, upright.height, 1)))
    except Undecodable:
        raise
    except UnidentifiedImageError:
        raise Undecodable(f"not an image: starts with {bytes(data[:8])!r}") from None
    except Exception as error:  # Pillow raises many kinds for broken files; each is a reason, never a crash
        raise Undecodable(f"broken image: {type(error).__name__}: {error}".replace("\n", " ")[:200]) from None


def refuse_image(image: Image.Image, data: bytes | memoryview) -> None:
    """An opened image whose decoding would cost too much; nothing of it is decoded yet."""
    as_jpeg = image.format in ("JPEG", "MPO")
    refuse_costly(image.width, image.height, image.mode, len(data), in_rows=as_jpeg)
    if as_jpeg:
        refuse_scans(data if isinstance(data, bytes) else bytes(data), image.width * image.height)


def _choose(image: Image.Image, choose_shrink: Callable[[int, int], int]) -> tuple[int, int, int]:
    """Upright width and height of a JPEG, and by how much it will be shrunk."""
    turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    width, height = reversed(image.size) if turned else image.size
    return width, height, choose_shrink(width, height)


def _decode_strictly(image: Image.Image, data: bytes | memoryview, shrink: int) -> Image.Image:
    """A JPEG that does not end early, turned upright. Pillow does not pass on what libjpeg warns of, so simplejpeg is
    asked: for the pixels themselves, which are the same, or, where it has no RGB, for an eighth of the size."""
    least = [-(-side // shrink) if shrink > 1 else 0 for side in image.size]
    try:
        if image.mode not in ("L", "RGB"):
            simplejpeg.decode_jpeg(data, "CMYK", min_height=1, min_width=1)
        else:
            pixels = simplejpeg.decode_jpeg(data, "RGB", min_width=least[0], min_height=least[1])
            turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
            decoded = Image.fromarray(pixels)
            return decoded if turn is None else decoded.transpose(turn)
    except ValueError as error:
        raise_if_early(error)
    if shrink > 1:
        image.draft("RGB", (image.width // shrink, image.height // shrink))
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I;16", "I;16B", "I;16L", "I;16N", "I"):
        upper = np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8)  # in 2 or 4 bytes a pixel: it may be large
        return Image.fromarray(upper).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
