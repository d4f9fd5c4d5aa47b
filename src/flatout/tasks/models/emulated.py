"""A model whose compute is a calibrated wait: the data path, network and service around it stay real."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout.errors import ConfigError


class Wait:
    """Waits to an absolute deadline; what one wait overshoots, the next is shorter by, so that steps do not drift."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        spin_seconds: float = 100e-6,
    ) -> None:
        self.clock = clock
        self.sleep = sleep
        self.spin_seconds = spin_seconds  # how late a sleep wakes when idle; no more, since spinning holds the GIL
        self.owed_seconds = 0.0

    def until(self, start: float, seconds: float) -> None:
        """Return `seconds` after `start`, less what is owed from before."""
        deadline = start + seconds - self.owed_seconds
        while (remaining := deadline - self.clock()) > 0:
            if remaining > self.spin_seconds:
                self.sleep(remaining - self.spin_seconds)
        # A busy machine may owe more than a whole wait; forgiving the rest keeps later steps from being free.
        self.owed_seconds = min(self.clock() - deadline, seconds)


class EmulatedModel(nn.Module):
    """Holds a real model's parameters, so that optimizer, checkpoints and all-reduce move real bytes.

    Forward takes `forward_share` of `base_seconds + seconds_per_sample * batch` and gives zero logits; backward takes
    the rest and gives every parameter a zero gradient. Without backward (validation) only forward's share is spent.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        base_seconds: float,
        seconds_per_sample: float,
        forward_share: float = 1 / 3,
        wait: Wait | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.classes = classes
        self.base_seconds = base_seconds
        self.seconds_per_sample = seconds_per_sample
        self.forward_share = forward_share
        self.wait = Wait() if wait is None else wait

    def forward(self, x: Tensor) -> Tensor:
        start = self.wait.clock()
        if x.device.type != "cpu":
            raise ConfigError(f"an emulated device takes batches on the CPU, not on {x.device}; leave them there")
        seconds = self.base_seconds + self.seconds_per_sample * len(x)
        forward_seconds = seconds * self.forward_share
        backward = _Backward(self.wait, seconds - forward_seconds)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        logits: Tensor = _ZeroLogits.apply(backward, len(x), self.classes, *parameters)  # type: ignore[no-untyped-call]
        self.wait.until(start, forward_seconds)
        return logits


@dataclass(frozen=True)
class _Backward:
    wait: Wait
    seconds: float


class _ZeroLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, planned: _Backward, batch: int, classes: int, *parameters: Tensor) -> Tensor:
        ctx.planned = planned
        ctx.parameters = parameters  # not save_for_backward: only their shapes matter, whatever happens to their values
        return torch.zeros(batch, classes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        start = ctx.planned.wait.clock()
        zeros = [torch.zeros_like(p) for p in ctx.parameters]  # their cost is hidden in the wait
        ctx.planned.wait.until(start, ctx.planned.seconds)
        return (None, None, None, *zeros)
