"""Decode once, augment every epoch: full decoded images of samples that were read before."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.cache.arena import Arena
from flatout.data.batch import StageSeconds
from flatout.data.dataset import Split
from flatout.data.decode import Undecodable, decode_pixels
from flatout.data.readers import Source, read_source
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
        pixels, shapes = self.arena.get(split.rows[ids])
        sources: list[Source | StorageError] = list(pixels)
        missing = np.flatnonzero(shapes[:, 0] == 0).tolist()
        stages.fetch += time.perf_counter() - started
        stages.cache_hits += len(ids) - len(missing)
        stages.cache_misses += len(missing)
        if missing:
            self._fill(split, ids, missing, sources, shapes, stages)
        return sources, shapes

    def _fill(
        self,
        split: Split,
        ids: NDArray[np.int64],
        missing: list[int],
        sources: list[Source | StorageError],
        shapes: NDArray[np.int32],
        stages: StageSeconds,
    ) -> None:
        started = time.perf_counter()
        answers = [read_source(source) for source in split.locate(ids[missing])]
        stages.fetch += time.perf_counter() - started
        for slot, answer in zip(missing, answers, strict=True):
            sources[slot] = answer
            if isinstance(answer, StorageError):
                if not isinstance(answer, ObjectMissing):
                    raise answer
                continue
            row = int(split.rows[ids[slot]])
            started = time.perf_counter()
            try:
                pixels = decode_pixels(answer)
            except Undecodable:
                continue  # found out again, with its reason, by whoever prepares the batch
            finally:
                stages.decode += time.perf_counter() - started
            stages.bytes_read += len(answer)
            self.arena.put(row, pixels)
            sources[slot], shapes[slot] = np.ascontiguousarray(pixels).reshape(-1).data, pixels.shape[:2]
