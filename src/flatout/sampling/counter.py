"""Random numbers as a pure function of a key and a counter: Philox 4x32-10, for many counters at once.

A draw depends on (seed, epoch, sample id, stream) alone, so workers, ranks, threads, caches and restarts cannot
change it. Written out in numpy because numpy's own generators promise no stable stream across versions.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(key: int, counters: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Ten rounds of Philox 4x32 under a 64-bit key; counters and result are [n, 4]."""
    c0, c1, c2, c3 = (counters[:, column].astype(np.uint64) for column in range(4))
    key_0, key_1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> _SHIFT) ^ c1 ^ np.uint64(key_0),
            product_1 & _LOW,
            (product_0 >> _SHIFT) ^ c3 ^ np.uint64(key_1),
            product_0 & _LOW,
        )
        key_0, key_1 = (key_0 + _WEYL_0) & 0xFFFFFFFF, (key_1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def uniforms(seed: int, epoch: int, ids: NDArray[np.int64], stream: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each id, as [len(ids), count]; `stream` tells independent uses apart."""
    blocks = -(-count // 4)
    rows = np.repeat(ids.astype(np.uint64), blocks)
    counters = np.empty((len(rows), 4), np.uint32)
    counters[:, 0] = rows & _LOW
    counters[:, 1] = rows >> _SHIFT
    counters[:, 2] = epoch & 0xFFFFFFFF
    counters[:, 3] = np.tile(np.arange(blocks, dtype=np.uint32), len(ids)) + np.uint32(stream << 16)
    words = philox(seed, counters).reshape(len(ids), blocks * 4)
    return words[:, :count].astype(np.float64) / 2.0**32
