"""Random numbers as a pure function of a key and a counter: Philox 4x32-10, for many counters at once.

A draw depends on (seed, epoch, sample id, stream) alone, so workers, ranks, threads, caches and restarts cannot
change it. Written out in numpy because numpy's own generators promise no stable stream across versions.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.arange(10, dtype=np.uint64)[:, None, None] * np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(key: int, counters: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Ten rounds of Philox 4x32 under a 64-bit key; counters and result are [n, 4]."""
    words = counters.T.astype(np.uint64, order="C")
    even, odd = words[0::2], words[1::2]  # both halves of a round at once: few large operations, not many small ones
    for keys in (np.array([[key & 0xFFFFFFFF], [key >> 32]], np.uint64) + _WEYL) & _LOW:
        product = even * _MULTIPLIERS
        even = (product[::-1] >> _SHIFT) ^ odd ^ keys
        odd = product[::-1] & _LOW
    return np.stack([even[0], odd[0], even[1], odd[1]], axis=1).astype(np.uint32)


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
