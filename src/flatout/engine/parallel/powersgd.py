"""PowerSGD (Vogels et al., 2019): gradient matrices as products of two thin ones, the error kept for the next step.

State is kept by the name of the parameter, not by DDP's buckets, so that it can go into a checkpoint and come back
although DDP arranges its buckets anew.
"""

import zlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from flatout.config.schema import ParallelConfig


class PowerSgd:
    def __init__(self, names: Mapping[int, str], rank: int, start_step: int) -> None:
        self._names = names  # id of a parameter -> its name
        self._rank = rank
        self._start_step = start_step
        self._step = 0
        self.errors: dict[str, Tensor] = {}
        self.bases: dict[str, Tensor] = {}  # Q of the step before: the warm start

    @property
    def begun(self) -> bool:
        return self._step > self._start_step

    def begin_step(self, step: int) -> None:
        self._step = step

    def reduce(self, bucket: GradBucket) -> None:
        """Replace the bucket's gradients by the ranks' mean, approximated. Waits for the exchange."""
        world_size = dist.get_world_size()
        named = [(self._names[id(p)], g) for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True)]
        matrices = {name: gradient.reshape(len(gradient), -1) for name, gradient in named if self._pays(gradient)}
        others = [gradient for name, gradient in named if name not in matrices]
        for name, matrix in matrices.items():
            matrix.add_(self.errors.get(name, 0))
        lefts = {name: matrix @ self._basis(name, matrix) for name, matrix in matrices.items()}
        _all_reduce([*lefts.values(), *others], world_size)
        for name, left in lefts.items():
            lefts[name] = torch.linalg.qr(left).Q
        rights = {name: matrix.T @ lefts[name] for name, matrix in matrices.items()}
        _all_reduce(list(rights.values()), world_size)
        for name, matrix in matrices.items():
            mean = lefts[name] @ rights[name].T
            self.errors[name], self.bases[name] = matrix - mean, rights[name]
            matrix.copy_(mean)

    def tensors(self) -> dict[str, Tensor]:
        errors = {f"error/{name}": value for name, value in self.errors.items()}
        return {**errors, **{f"basis/{name}": value for name, value in self.bases.items()}}

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """What `tensors` gave, read from a file; `device` is that of the gradients."""
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            (self.errors if kind == "error" else self.bases)[name] = value.to(device, copy=True)

    def _pays(self, gradient: Tensor) -> bool:
        rows = len(gradient) if gradient.ndim > 1 else 0
        columns = gradient.numel() // rows if rows else 0
        return rows > 0 and 2 * (rows + columns) * self._rank < gradient.numel()

    def _basis(self, name: str, matrix: Tensor) -> Tensor:
        if name not in self.bases:
            # by name: the order in which parameters come first is DDP's, and another after a resume
            same_everywhere = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            start = torch.randn(matrix.shape[1], self._rank, generator=same_everywhere)
            self.bases[name] = start.to(matrix.device, matrix.dtype)
        basis: Tensor = torch.linalg.qr(self.bases[name]).Q
        return basis


def compressed_share(model: nn.Module, config: ParallelConfig) -> float:
    """What is left of the gradients' bytes on the wire."""
    if config.compress != "powersgd":
        return 1.0 if config.compress == "none" else 0.5
    parameters = [p for p in model.parameters() if p.requires_grad]
    rank, left = config.powersgd_rank, 0
    for parameter in parameters:
        thin = rank * (len(parameter) + parameter.numel() // len(parameter)) if parameter.ndim > 1 else 0
        left += thin if 0 < 2 * thin < parameter.numel() else parameter.numel()
    return left / sum(p.numel() for p in parameters)


def _all_reduce(tensors: list[Tensor], world_size: int) -> None:
    """Mean over ranks, in one exchange."""
    if not tensors:
        return
    flat = torch.cat([each.reshape(-1) for each in tensors])
    dist.all_reduce(flat.div_(world_size))
    for each, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        each.copy_(part.view_as(each))
