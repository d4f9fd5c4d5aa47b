"""Decode once, augment every epoch: full decoded images of samples that were read before."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.cache.arena import Arena, Shared, whole_blocks
from flatout.data.pixels.decode import native
from flatout.data.source.dataset import Split
from flatout.data.source.readers import Extents, Source
from flatout.errors import StorageError


class SampleCache:
    """Says which samples of a batch are decoded already, and where the others are to be kept; what does not fit is
    read and decoded again each time."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def locate(
        self, split: Split, ids: NDArray[np.int64]
    ) -> tuple[Sequence[Source | StorageError], NDArray[np.int32], NDArray[np.int64]]:
        """A source for every sample; height and width of the decoded ones, else 0, 0; and the arena's rows of those
        that it may still keep, else -1."""
        rows = split.rows[ids]
        offsets, lengths, shapes = self.arena.find(rows)
        missing = shapes[:, 0] == 0
        if missing.all():
            return split.locate(ids), shapes, rows
        kept = Extents([self.arena.pixels], np.zeros(len(rows), np.int32), offsets, lengths)
        if not missing.any():
            return kept, shapes, np.full(len(rows), -1)
        return _merged(kept, split.locate(ids[missing]), missing), shapes, np.where(missing, rows, -1)

    def keep(self, rows: NDArray[np.int64]) -> tuple[Shared, NDArray[np.int64]] | None:
        """For the compiled decoder; None where there is nothing to keep."""
        return (self.arena.shared, rows) if bool((rows >= 0).any()) else None

    def put(self, row: int, pixels: NDArray[np.uint8]) -> None:
        """What only Pillow can decode."""
        if native is None:
            self.arena.put(row, pixels)
        else:
            native.keep(self.arena.shared, row, np.ascontiguousarray(pixels))


def _merged(
    kept: Extents, others: Sequence[Source | StorageError], missing: NDArray[np.bool_]
) -> Sequence[Source | StorageError]:
    """`others`, in order, where `missing` says so, else what is kept."""
    if isinstance(others, Extents):
        which, offsets, lengths = kept.which.copy(), kept.offsets.copy(), kept.lengths.copy()
        which[missing], offsets[missing], lengths[missing] = others.which + 1, others.offsets, others.lengths
        return Extents([*kept.bases, *others.bases], which, offsets, lengths)
    rest = iter(others)
    return [next(rest) if absent else kept[slot] for slot, absent in enumerate(missing.tolist())]


def kept_pixels(data: bytes | memoryview, height: int, width: int) -> NDArray[np.uint8]:
    """RGB of a picture of the arena (or of a decoded pack), [height, width, 3], for those who do not ask compiled
    code. A width below 0 says that it was kept as planes; the arithmetic is libjpeg's, as in native/planes.c."""
    kept = np.frombuffer(data, np.uint8)
    if width > 0:
        return kept.reshape(height, width, 3)
    width, half_height, half_width = -width, (height + 1) // 2, (1 - width) // 2
    luma, *chroma = (kept[part] for part in _parts(height, width))
    y = luma.reshape(-1, whole_blocks(width))[:height, :width].astype(np.int32)
    cb, cr = (
        _upsampled(plane.reshape(-1, whole_blocks(half_width))[:half_height, :half_width])[:height, :width] - 128
        for plane in chroma
    )
    red = (91881 * cr + 32768) >> 16
    green = (-22554 * cb - 46802 * cr + 32768) >> 16
    blue = (116130 * cb + 32768) >> 16
    return np.stack([y + red, y + green, y + blue], axis=2).clip(0, 255).astype(np.uint8)


def _parts(height: int, width: int) -> list[slice]:
    """Of the luma and of both chroma planes."""
    chroma = whole_blocks((height + 1) // 2) * whole_blocks((width + 1) // 2)
    ends = np.cumsum([0, whole_blocks(height) * whole_blocks(width), chroma, chroma])
    return [slice(first, end) for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _upsampled(chroma: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Twice as many rows and columns: 3/4 of the nearer and 1/4 of the further, edges repeated."""
    padded = np.pad(chroma.astype(np.int32), 1, mode="edge")
    rows = np.empty((2 * chroma.shape[0], padded.shape[1]), np.int32)
    rows[::2], rows[1::2] = 3 * padded[1:-1] + padded[:-2], 3 * padded[1:-1] + padded[2:]
    out = np.empty((rows.shape[0], 2 * chroma.shape[1]), np.int32)
    out[:, ::2] = (3 * rows[:, 1:-1] + rows[:, :-2] + 8) >> 4
    out[:, 1::2] = (3 * rows[:, 1:-1] + rows[:, 2:] + 7) >> 4
    return out
