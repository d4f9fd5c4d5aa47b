"""What one training step does and holds, as traced: kernels with their arithmetic and traffic, and bytes by part.

Everything is a straight line over the batch, because that is how shapes grow: `fixed + per_sample * batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

KINDS = (
    "conv",
    "grouped",
    "odd_grouped",
    "depthwise",
    "matmul",
    "attention",
    "norm",
    "elementwise",
    "copy",
    "optimizer",
)
"""Classes of kernels that reach different shares of a card's peak. Of grouped convolutions, those whose channels are no
power of two have slow kernels where channels are innermost."""
PARTS = ("weights", "gradients", "optimizer", "activations")
"""What the tensors of a step are held for. Buffers (running statistics) count as weights."""
FORMAT = 4
"""Raised when what is traced changes its meaning: older stored traces are then made again."""


@dataclass(frozen=True)
class Line:
    """A quantity that grows with the batch."""

    fixed: float
    per_sample: float

    def at(self, batch: float) -> float:
        return self.fixed + self.per_sample * batch

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> Line:
        """Through two points (batch, value); what shrinks with the batch counts as fixed."""
        slope = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - slope * small[0]), slope)


@dataclass(frozen=True)
class Kernels:
    """`count` kernels of one kind and one shape."""

    kind: str
    phase: str
    """forward, backward or optimizer."""
    width: int
    """The narrowest side of its matrix product (channels of a group); 0 where there is none."""
    count: int
    flops: Line
    """Of one of them; a multiply and an add are two."""
    bytes: Line
    """Read and written by one of them, each tensor once."""
    sixteen_bit: bool
    """Whether it computes in a 16-bit type."""


@dataclass(frozen=True)
class TracedWork:
    """One step of one model at one precision and layout."""

    kernels: tuple[Kernels, ...]
    memory: Mapping[str, Line]
    """Bytes by part, at the moment when their sum is largest."""
    parameters: int
    gradient_bytes: float
    forward_share: float
    """Of the arithmetic: what gradient checkpointing does again."""
    largest_activation: Line
    """Bytes of the largest single tensor: what a workspace is compared with."""
    unit: str = "images"

    def peak(self) -> Line:
        lines = list(self.memory.values())
        return Line(sum(line.fixed for line in lines), sum(line.per_sample for line in lines))

    def flops(self, batch: float) -> float:
        return sum(each.count * each.flops.at(batch) for each in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        rows = [
            [kind, phase, width, count, *flops, *moved, narrow]
            for kind, phase, width, count, flops, moved, narrow in map(astuple, self.kernels)
        ]
        return {**asdict(self), "kernels": rows, "format": FORMAT}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TracedWork:
        """What `to_dict` gave; a trace of another format is a KeyError, and whoever stored it traces again."""
        if values["format"] != FORMAT:
            raise KeyError("format")
        kernels = tuple(
            Kernels(kind, phase, width, count, Line(flops, flops_each), Line(moved, moved_each), narrow)
            for kind, phase, width, count, flops, flops_each, moved, moved_each, narrow in values["kernels"]
        )
        memory = {part: Line(**line) for part, line in values["memory"].items()}
        told = {each.name: values[each.name] for each in fields(cls)}
        return cls(
            **{**told, "kernels": kernels, "memory": memory, "largest_activation": Line(**told["largest_activation"])}
        )
