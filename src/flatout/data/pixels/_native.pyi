"""The compiled fast path of the loader; see native/native.h for how it is divided.

Optional: without it the Pillow path does all the work. Every function lets go of the GIL and may be called from
several threads at once. Buffers are C-contiguous (numpy arrays, for instance).
"""

from typing import Final, Protocol

from typing_extensions import Buffer

from flatout.machine.files import OpenFile

class HasFileno(Protocol):
    def fileno(self) -> int: ...

ABI: Final[int]
LIBJPEG_VERSION: Final[str]
MAX_PIXELS: Final[int]

Base = Buffer | OpenFile | tuple[OpenFile, Buffer]
Arena = tuple[Buffer, Buffer, Buffer, HasFileno | None]
"""Pixels, index, bytes used, and the file that the pixels are a mapping of: flatout.cache.arena.Arena.shared."""

def load_slice(
    sources: list[str | Buffer | Exception | None] | tuple[list[Base], Buffer, Buffer, Buffer],
    raw_shapes: Buffer | None,
    geometry: Buffer,
    size: int,
    fill: int,
    out: Buffer,
    status: Buffer,
    keep: tuple[Arena, Buffer] | None = None,
    scaled: bool = False,
) -> tuple[float, float, float, int]:
    """Read, decode, crop, resize, shift and flip N samples; equal to the byte to Pillow's crop() and resize().

    sources: per sample a path (str), JPEG bytes or decoded RGB pixels; None, or an exception that says why it
    could not be fetched, leaves it and its status alone. Or, for stretches of a few buffers or open files: those, and
    per sample which of them (int32 [N]), offset and length (int64 [N]), cut off where the buffer ends. Among them may
    be folders, as an open folder and names that end in a zero byte: then the offset is that of a name, and the length
    what its file probably has.
    raw_shapes: int32 [N, 2], height and width of decoded pixels; (0, 0) or no array at all for JPEGs. A width below 0
    says that they are the planes of a 4:2:0 picture, as an arena keeps them (flatout.cache.arena).
    geometry: float64 [N, 27]: kind, fraction, u, v, dx, dy, 10 widths, 10 heights, flip.
    fill: the value of pixels shifted in from outside.
    out: uint8 [N, 3, size, size].
    status: int32 [N]: 0 done, 1 not for this path (decode it with Pillow), below 0 -errno of opening or reading.
    keep: an arena, and for each sample the row (int64 [N]) it gets there when it is decoded: whole then, and the crop
    is taken from there. Where the row is below 0 or has a picture, or nothing is left, only the crop is decoded.
    scaled: JPEGs are decoded at 1/2, 1/4 or 1/8 (libjpeg's DCT scaling) where their crop is still no smaller than the
    result then, as by Pillow's draft(); the crop's edges are at the nearest pixels of that. Not together with `keep`.
    Returns seconds of fetching, decoding and augmenting, and the bytes read from files.
    """

def list_folder(path: str, prefix: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """What a folder holds, in the order of the names' bytes: names of its files after `prefix`, their sizes (int64),
    locators (16 bytes each, as flatout.storage.locators.file_locator), names of its folders, and of links to folders.
    Each name ends in a zero byte. Links are followed; those that lead nowhere, and what is neither file nor folder, are
    left out. OSError where it cannot be listed."""

def own_huffman(allow: bool) -> bool:
    """Allow the Huffman decoder of native/huffman.c, or leave libjpeg's in place; whether ours is in use, known once a
    picture was decoded: never with a libjpeg-turbo that is not among those it was tested with."""

def keep(arena: Arena, row: int, pixels: Buffer) -> bool:
    """Copy a decoded picture (uint8 [height, width, 3]) to an arena; False where the row has one or nothing is left."""

def normalize(src: Buffer, dst: Buffer, scale_bias: Buffer) -> None:
    """dst = src * scale + bias per channel: uint8 [N, 3, ...] to float32."""

def uniforms(seed: int, epoch: int, ids: Buffer, stream: int, out: Buffer) -> None:
    """flatout.sampling.uniforms for int64 ids [N], written to float64 [N, count]."""

def jpeg_size(data: Buffer) -> tuple[int, int, int] | None:
    """Width, height and components of an 8-bit baseline or progressive JPEG, from its header alone."""

def kept_bytes(data: Buffer) -> int | None:
    """What load_slice() keeps of a JPEG, or Pillow where it is not for this path; None where it is no sound JPEG."""
