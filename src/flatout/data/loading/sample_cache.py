"""Decode once, augment every epoch: full decoded images of samples that were read before."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.cache.arena import Arena, Shared
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
