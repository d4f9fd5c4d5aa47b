"""Averages of the weights, exponential or over the end of a run: often the better model to validate, for one
multiply-add per step."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from flatout.config.schema import TrainConfig
from flatout.errors import ConfigError


@dataclass
class Ema:
    """The averaged parameters by name. Make one with `Ema.start(model, decay)`.

    Buffers are not averaged: batch norm's running statistics are averages already, and counters cannot be. Under
    `applied` the model keeps its live buffers, which is what copying them at every update would give.
    """

    decay: float
    warm_up: bool
    averages: dict[str, Tensor]
    updates: int = 0
    counts: bool = True  # whether the present steps are averaged

    @classmethod
    @torch.no_grad()
    def start(cls, model: nn.Module, decay: float, warm_up: bool = True) -> Self:
        """An average that begins at the model's present weights."""
        return cls(decay, warm_up, {name: p.detach().clone() for name, p in model.named_parameters()})

    def restarted(self, model: nn.Module) -> Self:
        """From the model's present weights."""
        return self.start(model, self.decay, self.warm_up)

    def begin_epoch(self, epoch: int) -> None:
        """Before the first step that an attempt does in each epoch."""

    def next_decay(self) -> float:
        """With warm-up, early averages forget the random start fast: 0.1, 0.18, 0.25, ... up to `decay`."""
        return min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm_up else self.decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Once after every optimizer step that changed the weights."""
        if self.counts:
            averages, weights = self._pairs(model)
            torch._foreach_lerp_(averages, weights, 1 - self.next_decay())
            self.updates += 1

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model carries the averaged weights inside, and its own, to the bit, after. Costs one copy of the weights.

        Values are copied rather than pointers swapped: compiled graphs and DDP buckets hold the addresses.
        """
        averages, weights = self._pairs(model)
        kept = [weight.clone() for weight in weights]
        _copy(averages, weights)
        try:
            yield
        finally:
            _copy(kept, weights)

    def tensors(self) -> dict[str, Tensor]:
        """Live tensors for a checkpoint: `average/NAME` and `updates`."""
        averages = {f"average/{name}": average for name, average in self.averages.items()}
        return {**averages, "updates": torch.tensor(self.updates, dtype=torch.int64)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors()` gave, for a model of the same parameters."""
        expected = {f"average/{name}": average.shape for name, average in self.averages.items()}
        found = {key: value.shape for key, value in tensors.items() if key != "updates"}
        if expected != found or "updates" not in tensors:
            different = sorted(expected.items() ^ found.items())
            what = f"first difference: {different[0][0]!r}" if different else "'updates' is missing"
            raise ConfigError(
                f"the checkpoint's averaged weights do not fit the model ({what}); "
                "resume with the model of the checkpoint, or start a new run"
            )
        _copy([tensors[key] for key in expected], list(self.averages.values()))
        self.updates = int(tensors["updates"].item())

    def _pairs(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        named = [(self.averages[name], p.detach()) for name, p in model.named_parameters()]
        return [average for average, _ in named], [weight for _, weight in named]


@dataclass
class Swa(Ema):
    """The plain mean of the weights of all steps from an epoch on (stochastic weight averaging, Izmailov et al., 2018).

    Before that epoch there is no average, and the model is validated as it is. Here too norms keep their live
    statistics: the paper's second pass over the data to measure them would cost a third of an epoch.
    """

    first_epoch: int = 0

    @classmethod
    def over_end(cls, model: nn.Module, share: float, epochs: int) -> Self:
        """Of a run of `epochs`, from this share of them on; always of the last epoch."""
        started = cls.start(model, 0.0)
        started.first_epoch = min(epochs - 1, math.ceil(share * epochs))
        return started

    def restarted(self, model: nn.Module) -> Self:
        return replace(self, averages=self.start(model, 0.0).averages, updates=0)

    def begin_epoch(self, epoch: int) -> None:
        self.counts = epoch >= self.first_epoch

    def next_decay(self) -> float:
        return self.updates / (self.updates + 1)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        with super().applied(model) if self.updates else nullcontext():
            yield

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors()
        return found if self.updates else {"updates": found["updates"]}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors.keys() != {"updates"}:
            super().load(tensors)


def average_for(model: nn.Module, train: TrainConfig, ema: type[Ema] = Ema, swa: type[Swa] = Swa) -> Ema | None:
    """What the recipe asks for, by these kinds of averages."""
    if train.swa is not None:
        return swa.over_end(model, train.swa, train.epochs)
    return None if train.ema is None else ema.start(model, train.ema)


@torch.no_grad()
def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)
