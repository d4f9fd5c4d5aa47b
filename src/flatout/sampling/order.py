"""Which samples stand in which global batch: pure functions of sizes, seed, epoch and index."""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flatout.sampling.counter import uniforms

Uniforms = Callable[[int, int, NDArray[np.int64], int, int], NDArray[np.float64]]
_ORDER_STREAM = 0xFFFF  # no other use of `uniforms` has it


def epoch_order(samples: int, seed: int, epoch: int, numbers: Uniforms = uniforms) -> NDArray[np.int64]:
    """Every sample id once, in the order of one epoch: ids sorted by a random 64-bit key. `numbers`: the same as
    `uniforms`, but faster."""
    words = (numbers(seed, epoch, np.arange(samples), _ORDER_STREAM, 2) * 2.0**32).astype(np.uint64)
    keys = words[:, 0] << np.uint64(32) | words[:, 1]
    order = np.argsort(keys)  # twice as fast as a stable sort, and equal to it unless two keys are
    if np.any(keys[order[1:]] == keys[order[:-1]]):
        order = np.argsort(keys, kind="stable")
    return order.astype(np.int64)


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
