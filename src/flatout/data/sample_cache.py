"""Decode once, augment every epoch: full decoded images of samples that were read before."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.cache.arena import Arena
from flatout.data.batch import StageSeconds
from flatout.data.dataset import Split
from flatout.data.decode import Undecodable, decode_pixels
from flatout.data.readers import Extents, Source, read_source
from flatout.errors import ObjectMissing, StorageError


class SampleCache:
    """Sits between the readers and the augmentation; what does not fit is read and decoded again each time."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def fetch(
        self, split: Split, ids: NDArray[np.int64], stages: StageSeconds
    ) -> tuple[Sequence[Source | StorageError], NDArray[np.int32]]:
        """A source for every sample, decoded where the cache has or now gets it; shape 0, 0 means still a file."""
        started = time.perf_counter()
        kept, shapes = self._kept(split.rows[ids])
        missing = np.flatnonzero(shapes[:, 0] == 0).tolist()
        stages.fetch += time.perf_counter() - started
        stages.cache_hits += len(ids) - len(missing)
        stages.cache_misses += len(missing)
        if not missing:
            return kept, shapes
        sources: list[Source | StorageError] = list(kept)
        self._fill(split, ids, missing, sources, shapes, stages)
        return sources, shapes

    def _kept(self, rows: NDArray[np.int64]) -> tuple[Extents, NDArray[np.int32]]:
        offsets, lengths, shapes = self.arena.find(rows)
        return Extents([self.arena.pixels], np.zeros(len(rows), np.int32), offsets, lengths), shapes

    def _fill(
        self,
        split: Split,
        ids: NDArray[np.int64],
        missing: list[int],
        sources: list[Source | StorageError],
        shapes: NDArray[np.int32],
        stages: StageSeconds,
    ) -> None:
        started, wanted = time.perf_counter(), ids[missing]
        located = split.locate(wanted)
        answers = located if self.arena.full else [read_source(each) for each in located]
        stages.fetch += time.perf_counter() - started
        for slot, answer in zip(missing, answers, strict=True):
            sources[slot] = answer
            if isinstance(answer, StorageError) and not isinstance(answer, ObjectMissing):
                raise answer
            if not self.arena.full and not isinstance(answer, StorageError | str):
                self._keep(int(split.rows[ids[slot]]), answer, stages)
        pixels, found = self._kept(split.rows[wanted])
        for slot, kept, shape in zip(missing, pixels, found, strict=True):
            if shape[0]:  # what did not fit stays a file, of which only the crop is decoded
                sources[slot], shapes[slot] = kept, shape

    def _keep(self, row: int, data: bytes | memoryview, stages: StageSeconds) -> None:
        started = time.perf_counter()
        try:
            if self.arena.put(row, decode_pixels(data)):
                stages.bytes_read += len(data)
        except Undecodable:
            pass  # found out again, with its reason, by whoever prepares the batch
        finally:
            stages.decode += time.perf_counter() - started
