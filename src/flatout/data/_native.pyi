"""The compiled fast path of the loader; see native/native.h for how it is divided.

Optional: without it the Pillow path does all the work. Every function lets go of the GIL and may be called from
several threads at once. Buffers are C-contiguous (numpy arrays, for instance).
"""

from typing import Final

from typing_extensions import Buffer

ABI: Final[int]
LIBJPEG_VERSION: Final[str]
MAX_PIXELS: Final[int]

def load_slice(
    sources: list[str | Buffer | None],
    raw_shapes: Buffer | None,
    geometry: Buffer,
    size: int,
    fill: int,
    out: Buffer | None,
    out_float: Buffer | None,
    scale_bias: Buffer | None,
    status: Buffer,
) -> tuple[float, float, float, int]:
    """Read, decode, crop, resize, shift and flip N samples; equal to the byte to Pillow's crop() and resize().

    sources: per sample a path (str), JPEG bytes or decoded RGB pixels, or None to leave it and its status alone.
    raw_shapes: int32 [N, 2], height and width of decoded pixels; (0, 0) or no array at all for JPEGs.
    geometry: float64 [N, 27]: kind, fraction, u, v, dx, dy, 10 widths, 10 heights, flip.
    fill: the value of pixels shifted in from outside.
    out: uint8 [N, 3, size, size]. out_float: float32 of the same shape, pixel * scale + bias; one may be None.
    scale_bias: 6 floats, needed with out_float.
    status: int32 [N]: 0 done, 1 not for this path (decode it with Pillow), below 0 -errno of opening or reading.
    Returns seconds of fetching, decoding and augmenting, and the bytes read from files.
    """

def normalize(src: Buffer, dst: Buffer, scale_bias: Buffer) -> None:
    """dst = src * scale + bias per channel: uint8 [N, 3, ...] to float32."""

def jpeg_size(data: Buffer) -> tuple[int, int, int] | None:
    """Width, height and components of an 8-bit baseline or progressive JPEG, from its header alone."""
