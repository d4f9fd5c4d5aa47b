"""What a step holds on a card: the traced tensors, and what no trace sees: workspace, context, fragments, channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flatout.diagnosis.model.memory import CONTEXT_BYTES, NCCL_BYTES
from flatout.planning.work import TracedWork

WORKSPACE_SHARE = 1.0
"""cuDNN's workspace, in terms of the step's largest tensor: the gradient of its convolution keeps one beside it."""
LEAST_WORKSPACE_BYTES = 64e6
MOST_WORKSPACE_BYTES = 1e9
FRAGMENTED_SHARE = 0.03
"""Of the tensors: what torch's allocator has reserved around them."""
MARGIN = 0.05
"""How far a peak on a card may be above what is computed here: what is said to fit has this much to spare."""
SHARDED_LAYERS = 0.1
"""FSDP holds the whole weights and gradients of about this share of the model at a time."""


@dataclass(frozen=True)
class MemorySetup:
    """How a batch is held."""

    batch: int
    """Of one optimizer step on one card."""
    accumulate: int = 1
    ranks: int = 1
    sharded: bool = False
    """FSDP: each rank keeps its part of weights, gradients and optimizer state."""


@dataclass(frozen=True)
class MemoryParts:
    """Bytes by part; they add up to the peak as nvidia-smi shows it."""

    parts: Mapping[str, float]

    @property
    def peak_bytes(self) -> float:
        return sum(self.parts.values())

    def fits(self, card_bytes: float, margin: float = MARGIN) -> bool:
        return self.peak_bytes * (1 + margin) <= card_bytes

    def to_dict(self) -> dict[str, float]:
        return {**self.parts, "peak": self.peak_bytes}


def memory_of(work: TracedWork, setup: MemorySetup) -> MemoryParts:
    """Where parts of a batch follow each other, gradients stay from one to the next."""
    part_batch = math.ceil(setup.batch / setup.accumulate)
    traced = {part: line.at(part_batch) for part, line in work.memory.items()}
    if setup.accumulate > 1 or setup.ranks > 1:  # buckets of DDP are the gradients, and there from the first step on
        traced["gradients"] = work.gradient_bytes
    if setup.sharded and setup.ranks > 1:
        whole = SHARDED_LAYERS * (traced["weights"] + traced["gradients"])
        for part in ("weights", "gradients", "optimizer"):
            traced[part] /= setup.ranks
        traced["activations"] += whole
    workspace = WORKSPACE_SHARE * work.largest_activation.at(part_batch)
    workspace = min(max(workspace, LEAST_WORKSPACE_BYTES), MOST_WORKSPACE_BYTES)
    return MemoryParts(
        {
            **traced,
            "workspace": workspace,
            "context": float(CONTEXT_BYTES + (NCCL_BYTES if setup.ranks > 1 else 0)),
            "fragments": FRAGMENTED_SHARE * sum(traced.values()),
        }
    )


def largest_batch(work: TracedWork, setup: MemorySetup, card_bytes: float, margin: float = MARGIN) -> int:
    """The largest batch of one step that fits, as a multiple of `accumulate`; 0 where not even one sample does."""

    def fits(batch: int) -> bool:
        held = memory_of(work, MemorySetup(batch * setup.accumulate, setup.accumulate, setup.ranks, setup.sharded))
        return held.fits(card_bytes, margin)

    if not fits(1):
        return 0
    high = 2
    while fits(high) and high < 2**24:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * setup.accumulate
