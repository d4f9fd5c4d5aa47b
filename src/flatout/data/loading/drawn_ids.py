"""The samples of an epoch in order, kept for as long as batches of it are prepared."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.draws import fast_uniforms
from flatout.sampling import balanced_order, epoch_order

Drawn = tuple[NDArray[np.int64], NDArray[np.int64]]
Kept = dict[int, Drawn]
_EPOCHS = 2  # the one that trains, and the one ahead


def drawn_ids(labels: NDArray[np.int64], seed: int, epoch: int, balance: str, kept: Kept) -> Drawn:
    """Ids, and the keys that their random numbers go by. `kept` holds balanced epochs of these labels."""
    if balance == "off":
        order = _order(len(labels), seed, epoch)
        return order, order
    drawn = kept.get(epoch)
    if drawn is None:
        while len(kept) >= _EPOCHS:
            kept.pop(next(iter(kept)), None)
        drawn = kept[epoch] = balanced_order(labels, seed, epoch, fast_uniforms)
    return drawn


@lru_cache(maxsize=4)  # two epochs, for training and for looking ahead, of up to two jobs in one process
def _order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return epoch_order(samples, seed, epoch, fast_uniforms)
