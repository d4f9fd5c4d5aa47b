"""Lookahead (Zhang et al., 2019): slow weights that go a part of the way after every few steps of the fast ones."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flatout.errors import ConfigError


@dataclass
class Lookahead:
    """The slow weights by name. Make one with `Lookahead.start`.

    When fast and slow meet follows from the position in the epoch alone, and they always meet at its end: what is
    validated and what is kept of an epoch are the slow weights, and nobody else has to know of them.
    """

    every: int
    share: float
    slow: dict[str, Tensor]

    @classmethod
    @torch.no_grad()
    def start(cls, model: nn.Module, every: int, share: float) -> "Lookahead":
        return cls(every, share, {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad})

    def restarted(self, model: nn.Module) -> "Lookahead":
        """From the model's present weights."""
        return self.start(model, self.every, self.share)

    def after_batch(self, model: nn.Module, index: int) -> None:
        """Once after the step of the epoch's batch number `index`."""
        if (index + 1) % self.every == 0:
            self.meet(model)

    @torch.no_grad()
    def meet(self, model: nn.Module) -> None:
        """The slow weights go their part of the way, and the fast ones back to them. A second time changes nothing."""
        named = dict(model.named_parameters())
        slow, fast = list(self.slow.values()), [named[name].detach() for name in self.slow]
        torch._foreach_lerp_(slow, fast, self.share)
        torch._foreach_copy_(fast, slow)

    def tensors(self) -> dict[str, Tensor]:
        """Live tensors for a checkpoint."""
        return dict(self.slow)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors()` gave, for a model of the same parameters."""
        own, given = ({name: value.shape for name, value in each.items()} for each in (self.slow, tensors))
        if different := sorted(own.items() ^ given.items()):
            raise ConfigError(
                f"the checkpoint's slow weights do not fit the model (first difference: {different[0][0]!r}); "
                "resume with the model of the checkpoint, or start a new run"
            )
        torch._foreach_copy_(list(self.slow.values()), [tensors[name] for name in self.slow])
