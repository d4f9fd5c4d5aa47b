"""A split of whatever pictures somebody has: files by their path, or pixels in memory. Labels are all 0."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.dataset import Split
from flatout.data.source.identity import Origins
from flatout.data.source.readers import Rows, Source
from flatout.errors import DataError, ObjectMissing, StorageError
from flatout.storage.counters import StoreCounters

Pixels = NDArray[np.uint8]  # [height, width, 3]


@dataclass(frozen=True)
class PictureReader:
    """Gives pixels as a decoded pack does, so that every path through the loader is the usual one."""

    pictures: tuple[str | Pixels, ...]

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        return [_source(self.pictures[row]) for row in rows.tolist()]

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        kept = [(0, 0) if isinstance(each, str) else each.shape[:2] for each in (self.pictures[r] for r in rows)]
        return np.array(kept, np.int32) if any(height for height, _ in kept) else None

    def counters(self) -> StoreCounters:
        return StoreCounters()


def _source(picture: str | Pixels) -> Source | StorageError:
    """A file that cannot be opened is a bad picture, not a broken store: the others are still to be read."""
    if not isinstance(picture, str):
        return picture.reshape(-1).data
    if not os.path.exists(picture):
        return ObjectMissing("there is no such file")
    if not os.path.isfile(picture):  # opening a pipe would wait for a writer
        return ObjectMissing("not a regular file")
    return picture if os.access(picture, os.R_OK) else ObjectMissing("permission denied")


def picture_split(pictures: Sequence[str | Pixels]) -> Split:
    """Pictures in the order given, named by path or by number. Refuses arrays that are no RGB pixels, and none at all.

    Arrays are uint8, [height, width, 3]; grey ones, [height, width], are refused: say how they become RGB.
    """
    if not pictures:
        raise DataError("there are no pictures; give at least one")
    for number, each in enumerate(pictures):
        if not isinstance(each, str) and (
            each.dtype != np.uint8 or each.ndim != 3 or each.shape[2] != 3 or not each.size
        ):
            raise DataError(f"picture {number} is {each.dtype} {each.shape}; it must be uint8 [height, width, 3], RGB")
    reader = PictureReader(tuple(each if isinstance(each, str) else np.ascontiguousarray(each) for each in pictures))
    names = tuple(each if isinstance(each, str) else f"picture {number}" for number, each in enumerate(pictures))
    lengths = np.array([0 if isinstance(each, str) else each.nbytes for each in pictures], np.int64)
    rows = np.arange(len(names))
    return Split(names, np.zeros(len(names), np.int64), lengths, reader, rows, Origins(stores_originals=False))
