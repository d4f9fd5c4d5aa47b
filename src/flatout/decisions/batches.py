"""How large a batch is, in what unit, and which part of it each rank takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.decisions.choice import is_open
from flatout.errors import ConfigError

if TYPE_CHECKING:
    from flatout.config.schema import Config, DataConfig


@dataclass(frozen=True)
class BatchChoice:
    """A global batch, which one optimizer step takes over all ranks."""

    value: int
    """Its size in `unit`."""
    unit: str
    """samples, or tokens of both languages with padding."""
    key: str
    """What under `data` sets it."""
    reason: str
    per_rank: float
    """Its size over the number of ranks."""
    slices: tuple[tuple[int, int], ...] | None = None
    """First sample and the one after the last that each rank takes of a full batch; None where batches are cut by
    tokens and each has another number of samples."""
    wanted: Any = None


def choose_batch(
    config: Config, world_size: int, slice_of: Callable[[int, int, int], slice] | None = None
) -> BatchChoice:
    """`slice_of` is the rule of sampling.rank_slice: (samples, rank, ranks) -> slice."""
    if config.spec.batch_unit == "tokens":
        budget = config.data.batch_tokens
        why = f"data.batch_tokens = {budget} on each of {world_size} rank(s), cut into whole sentence pairs"
        return BatchChoice(budget * world_size, "tokens", "batch_tokens", why, budget, wanted=budget)
    return choose_sample_batch(config.data, world_size, slice_of)


def choose_sample_batch(
    data: DataConfig, world_size: int, slice_of: Callable[[int, int, int], slice] | None = None
) -> BatchChoice:
    """Of images: set for all ranks together, or for each of them."""
    if data.global_batch is not None:
        key, wanted, size, why = "global_batch", data.global_batch, data.global_batch, "over all ranks"
    else:
        key, wanted, size = "batch_size", data.batch_size, data.batch_size * world_size
        why = f"on each of {world_size} rank(s)"
    parts = None if slice_of is None else tuple(_bounds(slice_of(size, rank, world_size)) for rank in range(world_size))
    reason = f"data.{key} = {wanted} {why}; ranks take contiguous parts, pairs of neighbours together"
    return BatchChoice(size, "samples", key, reason, size / world_size, parts, wanted)


def _bounds(part: slice) -> tuple[int, int]:
    return int(part.start), int(part.stop)


def choose_rank(rank: int | str, world_size: int | str, found: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Rank and number of ranks of a loader in somebody's own loop; `found` is what the process group or the launcher
    says, and is asked where neither is given."""
    if is_open(world_size):
        if not is_open(rank):
            raise ConfigError(f"rank is {rank!r} but world_size is not given; give both, or neither")
        rank, world_size = found()
    rank = 0 if is_open(rank) and world_size == 1 else rank
    if not isinstance(rank, int) or not isinstance(world_size, int) or not 0 <= rank < world_size:
        raise ConfigError(f"rank is {rank!r} of world_size {world_size!r}; ranks count from 0 to world_size - 1")
    return rank, world_size
