"""What an emulated accelerator does besides forward and backward: nothing that costs the CPU, on state of real size.

The wait of a step covers optimizer, clipping and averaging too. Weights and state keep their first values, so that
checkpoints have the bytes they would have, and a run that goes on is the same to the bit.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.engine.eager_optimizer import EagerOptimizer
from flatout.engine.ema import Ema, Swa
from flatout.engine.lookahead import Lookahead
from flatout.engine.precision import Precision
from flatout.tasks.classification.emulated_model import EmulatedModel


class EmulatedOptimizer(EagerOptimizer):
    """The groups and the state of a real optimizer, which never changes."""

    def __init__(self, real: EagerOptimizer) -> None:
        super().__init__(real.param_groups, real.defaults)
        self.kind, self.state_names = real.kind, real.state_names
        if real.defaults.get("momentum") == 0:
            return  # SGD without momentum has no state
        for group in self.param_groups:
            names = (
                real.names_of(group) if isinstance(real, EagerOptimizer) else self.state_names
            )  # else the user's own
            for parameter in group["params"]:
                self.state[parameter] = {
                    name: torch.zeros(()) if name == "step" else torch.zeros_like(parameter) for name in names
                }

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        pass

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients of an emulated backward are zeros, and stay allocated."""


@dataclass(frozen=True)
class EmulatedPrecision(Precision):
    model: EmulatedModel | None = None

    def backward(self, loss: Tensor) -> None:
        if loss.requires_grad or self.model is None:
            super().backward(loss)
        else:
            self.model.backward()

    def gradient_norm(self, optimizer: Optimizer, parameters: Iterable[Tensor], wanted: bool) -> None:
        pass

    def step(
        self,
        optimizer: Optimizer,
        parameters: Iterable[Tensor] = (),
        clip_norm: float | None = None,
        norm: Tensor | None = None,
    ) -> None:
        pass


class EmulatedEma(Ema):
    def update(self, model: nn.Module) -> None:
        self.updates += self.counts

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Validation computes nothing with the weights."""
        yield


class EmulatedSwa(EmulatedEma, Swa):
    """The same of the other kind of average."""


class EmulatedLookahead(Lookahead):
    def meet(self, model: nn.Module) -> None:
        """Weights stay what they are."""
