"""Order, partition and random numbers as pure functions (numpy only)."""

from flatout.sampling.balanced import balanced_order
from flatout.sampling.counter import uniforms
from flatout.sampling.order import batch_count, batch_ids, epoch_order, ids_digest, rank_slice

__all__ = ["balanced_order", "batch_count", "batch_ids", "epoch_order", "ids_digest", "rank_slice", "uniforms"]
