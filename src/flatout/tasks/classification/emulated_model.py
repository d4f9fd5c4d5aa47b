"""A model whose compute is a calibrated wait: the data path, network and service around it stay real."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout.errors import ConfigError


@dataclass
class Wait:
    """Waits to an absolute deadline; what one wait overshoots, the next is shorter by, so that steps do not drift."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    spin_seconds: float = 100e-6  # how late a sleep wakes when idle; no more, since spinning holds the GIL
    owed_seconds: float = 0.0

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

    def sleep_until(self, deadline: float) -> None:
        """Without spinning: for moments on the way, where waking 0.1 ms late delays nothing that follows."""
        if (remaining := deadline - self.clock()) > 0:
            self.sleep(remaining)


class EmulatedModel(nn.Module):
    """Holds a real model's parameters, so that checkpoints and all-reduce move real bytes.

    Forward takes `forward_share` of `base_seconds + seconds_per_sample * batch` and gives zero logits; backward takes
    the rest and gives every parameter a zero gradient. `layered` does so by autograd, layer by layer from the last to
    the first, each after an equal part of the time: ranks can exchange what is ready while the rest is still
    "computed". Else the logits have no graph and `backward()` waits, since autograd alone takes 0.3 ms of CPU. Without
    backward (validation) only forward's share is spent.

    A parameter that has a gradient keeps it, zeros already: filling it again would cost the CPU the model's size at
    every step. The hooks that exchange gradients run all the same.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        base_seconds: float,
        seconds_per_sample: float,
        forward_share: float = 1 / 3,
        wait: Wait | None = None,
        layered: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.classes = classes
        self.base_seconds = base_seconds
        self.seconds_per_sample = seconds_per_sample
        self.forward_share = forward_share
        self.wait = Wait() if wait is None else wait
        self.layered = layered
        self._backward = _Backward(self.wait, 0.0)
        self._layers = _layers(model)  # walking through the modules takes as long as all else here

    def forward(self, x: Tensor) -> Tensor:
        start = self.wait.clock()
        if x.device.type != "cpu":
            raise ConfigError(f"an emulated device takes batches on the CPU, not on {x.device}; leave them there")
        seconds = self.base_seconds + self.seconds_per_sample * len(x)
        forward_seconds = seconds * self.forward_share
        self._backward = _Backward(self.wait, seconds - forward_seconds)
        by_autograd = self.layered and torch.is_grad_enabled()
        logits = torch.zeros(len(x), self.classes, requires_grad=by_autograd)
        if by_autograd:
            logits = self._with_graph(logits, self._backward)
        self.wait.until(start, forward_seconds)
        return logits

    def backward(self) -> None:
        """Of the last forward, where it left no graph."""
        self._backward.start = self.wait.clock()
        if self._layers[-1][-1].grad is None:  # else all have one
            for parameter in (p for layer in self._layers for p in layer if p.requires_grad):
                parameter.grad = torch.zeros_like(parameter)
        self._backward.pass_until(1.0)

    def _with_graph(self, logits: Tensor, backward: "_Backward") -> Tensor:
        for number, parameters in enumerate(self._layers):
            share = (len(self._layers) - number) / len(self._layers)  # of backward's time, when its turn is over
            trained = [p for p in parameters if p.requires_grad]
            logits = _Layer.apply(logits, backward, share, *trained)  # type: ignore[no-untyped-call]
        return logits


def _layers(model: nn.Module) -> list[list[Tensor]]:
    """Parameters in the order of the model; a matrix or filter begins a layer, norms and biases belong to it."""
    layers: list[list[Tensor]] = []
    for parameter in model.parameters():
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
            self.wait.sleep_until(self.start + share * self.seconds - self.wait.owed_seconds)


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
        zeros = [torch.zeros_like(p) if p.grad is None else None for p in ctx.parameters]
        planned.pass_until(ctx.share)
        return (gradients[0], None, None, *zeros)
