"""Which samples stand in which global batch: pure functions of sizes, seed, epoch and index."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from flatout.sampling.counter import philox

_ORDER_STREAM = 0xFFFF_0000  # above every stream that `uniforms` is given


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Every sample id once, in the order of one epoch: ids sorted by a random 64-bit key."""
    counters = np.zeros((samples, 4), np.uint32)
    counters[:, 0] = np.arange(samples) & 0xFFFFFFFF
    counters[:, 1] = np.arange(samples) >> 32
    counters[:, 2] = epoch & 0xFFFFFFFF
    counters[:, 3] = _ORDER_STREAM
    words = philox(seed, counters).astype(np.uint64)
    return np.argsort(words[:, 0] << np.uint64(32) | words[:, 1], kind="stable").astype(np.int64)


def batch_count(samples: int, batch_size: int) -> int:
    """Batches of one epoch; the last one may be short, so that every sample is seen exactly once."""
    return -(-samples // batch_size)


def batch_ids(order: NDArray[np.int64], index: int, batch_size: int) -> NDArray[np.int64]:
    """The sample ids of one global batch."""
    return order[index * batch_size : (index + 1) * batch_size]


def rank_slice(count: int, rank: int, world_size: int) -> slice:
    """The part of a global batch of `count` samples that one rank takes: contiguous, pairs of neighbours together."""
    pairs = -(-count // 2)
    bounds = [min(count, 2 * (pairs * part // world_size)) for part in (rank, rank + 1)]
    return slice(bounds[0], bounds[1])


def ids_digest(ids: NDArray[np.int64]) -> str:
    """Digest of sample ids; fixed-width encoding, so that [1, 23] and [12, 3] differ."""
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16]
