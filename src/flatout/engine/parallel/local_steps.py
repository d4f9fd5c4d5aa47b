"""Local steps: each rank trains by itself and the ranks move together now and then (post-local SGD, DiLoCo)."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout.config.schema import ParallelConfig


class LocalSteps:
    """Every `local_steps` the ranks' weights are averaged; the way there is a gradient for an outer Nesterov SGD.

    With outer_lr 1 and no momentum this is plain averaging. Inner optimizers keep their own momentum.
    """

    def __init__(self, model: nn.Module, config: ParallelConfig) -> None:
        assert config.local_steps is not None
        self._model = model
        self._every = config.local_steps
        self._from_epoch = config.local_from_epoch
        self._lr, self._momentum = config.outer_lr, config.outer_momentum
        self._unmerged = 0  # steps since the ranks were together
        parameters = list(model.named_parameters())
        self._anchor = {name: value.detach().clone() for name, value in parameters}
        self._velocity = {name: torch.zeros_like(value) for name, value in parameters if self._momentum}

    def active(self, epoch: int) -> bool:
        return epoch >= self._from_epoch

    def after_step(self, epoch: int) -> bool:
        """Whether the ranks are together now."""
        if not self.active(epoch):
            self._keep()
            return True
        self._unmerged += 1
        if self._unmerged < self._every:
            return False
        self.merge()
        return True

    def tensors(self) -> dict[str, Tensor]:
        return {f"outer/{name}": value for name, value in self._velocity.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self._velocity.items():
            if f"outer/{name}" in tensors:
                value.copy_(tensors[f"outer/{name}"])

    def restart(self) -> None:
        """The weights were set from outside, alike on all ranks."""
        self._keep()

    @torch.no_grad()
    def _keep(self) -> None:
        self._unmerged = 0
        for name, value in self._model.named_parameters():
            self._anchor[name].copy_(value)

    @torch.no_grad()
    def merge(self) -> None:
        """Bring the ranks together now, if they are apart."""
        if not self._unmerged:
            return
        named = dict(self._model.named_parameters())
        moves = torch.cat([(self._anchor[name] - value).reshape(-1) for name, value in named.items()])
        dist.all_reduce(moves.div_(dist.get_world_size()))
        parts = torch.split(moves, [value.numel() for value in named.values()])
        for (name, value), flat in zip(named.items(), parts, strict=True):
            move = flat.view_as(value)
            if self._momentum:
                velocity = self._velocity[name].mul_(self._momentum).add_(move)
                move = move + self._momentum * velocity
            value.copy_(self._anchor[name] - self._lr * move)
        self._keep()
