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
        self.pause_until(deadline)
        # A busy machine may owe more than a whole wait; forgiving the rest keeps later steps from being free.
        self.owed_seconds = min(self.clock() - deadline, seconds)

    def pause_until(self, deadline: float) -> None:
        while (remaining := deadline - self.clock()) > 0:
            if remaining > self.spin_seconds:
                self.sleep(remaining - self.spin_seconds)


class EmulatedModel(nn.Module):
    """Holds a real model's parameters, so that optimizer, checkpoints and all-reduce move real bytes.

    Forward takes `forward_share` of `base_seconds + seconds_per_sample * batch` and gives zero logits; backward takes
    the rest and gives every parameter a zero gradient, layer by layer from the last to the first, each after an equal
    part of the time: ranks can exchange what is ready while the rest is still "computed". Without backward
    (validation) only forward's share is spent.
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
        logits = torch.zeros(len(x), self.classes)
        if torch.is_grad_enabled():
            backward = _Backward(self.wait, seconds - forward_seconds)
            layers = _layers(self.model)
            for number, parameters in enumerate(layers):
                share = (len(layers) - number) / len(layers)  # of backward's time, when this layer's turn is over
                logits = _Layer.apply(logits, backward, share, *parameters)  # type: ignore[no-untyped-call]
        self.wait.until(start, forward_seconds)
        return logits


def _layers(model: nn.Module) -> list[list[Tensor]]:
    """Parameters in the order of the model; a matrix or filter begins a layer, norms and biases belong to it."""
    layers: list[list[Tensor]] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            if not layers or parameter.ndim > 1:
                layers.append([])
            layers[-1].append(parameter)
    return layers


@dataclass
class _Backward:
    """The waits of one backward pass, from the first layer that asks."""

    wait: Wait
    seconds: float
    start: float | None = None

    def pass_until(self, share: float) -> None:
        assert self.start is not None
        if share == 1:
            self.wait.until(self.start, self.seconds)
        else:
            self.wait.pause_until(self.start + share * self.seconds - self.wait.owed_seconds)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, planned: _Backward, share: float, *parameters: Tensor) -> Tensor:
        ctx.planned, ctx.share = planned, share
        ctx.parameters = parameters  # not save_for_backward: only their shapes matter, whatever happens to their values
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        planned = ctx.planned
        if planned.start is None:
            planned.start = planned.wait.clock()
        zeros = [torch.zeros_like(p) for p in ctx.parameters]  # their cost is hidden in the wait
        planned.pass_until(ctx.share)
        return (gradients[0], None, None, *zeros)
