"""The compiled fast path of the loader; see native/native.h for how it is divided.

Optional: without it the Pillow path does all the work. Every function lets go of the GIL and may be called from
several threads at once. Buffers are C-contiguous (numpy arrays, for instance).
"""

from typing import Final

from typing_extensions import Buffer

from flatout.storage.local import OpenFile

ABI: Final[int]
LIBJPEG_VERSION: Final[str]
MAX_PIXELS: Final[int]

def load_slice(
    sources: list[str | Buffer | Exception | None] | tuple[list[Buffer | OpenFile], Buffer, Buffer, Buffer],
    raw_shapes: Buffer | None,
    geometry: Buffer,
    size: int,
    fill: int,
    out: Buffer,
    status: Buffer,
) -> tuple[float, float, float, int]:
    """Read, decode, crop, resize, shift and flip N samples; equal to the byte to Pillow's crop() and resize().

    sources: per sample a path (str), JPEG bytes or decoded RGB pixels; None, or an exception that says why it
    could not be fetched, leaves it and its status alone. Or, for stretches of a few buffers or open files: those, and
    per sample which of them (int32 [N]), offset and length (int64 [N]), cut off where the buffer ends.
    raw_shapes: int32 [N, 2], height and width of decoded pixels; (0, 0) or no array at all for JPEGs.
    geometry: float64 [N, 27]: kind, fraction, u, v, dx, dy, 10 widths, 10 heights, flip.
    fill: the value of pixels shifted in from outside.
    out: uint8 [N, 3, size, size].
    status: int32 [N]: 0 done, 1 not for this path (decode it with Pillow), below 0 -errno of opening or reading.
    Returns seconds of fetching, decoding and augmenting, and the bytes read from files.
    """

def normalize(src: Buffer, dst: Buffer, scale_bias: Buffer) -> None:
    """dst = src * scale + bias per channel: uint8 [N, 3, ...] to float32."""

def uniforms(seed: int, epoch: int, ids: Buffer, stream: int, out: Buffer) -> None:
    """flatout.sampling.uniforms for int64 ids [N], written to float64 [N, count]."""

def jpeg_size(data: Buffer) -> tuple[int, int, int] | None:
    """Width, height and components of an 8-bit baseline or progressive JPEG, from its header alone."""
