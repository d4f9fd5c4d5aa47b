"""FSDP2: every rank keeps a part of weights, gradients and optimizer state: for models that do not fit one device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

_LEAST_NUMBERS = 100_000  # a block below it is sharded with its parent: many small exchanges cost more than they save


def shard(model: nn.Module, device_type: str, world_size: int) -> None:
    """In place, block by block; parameters become new objects, so the optimizer is built afterwards."""
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP takes no other
    mesh = init_device_mesh(device_type, (world_size,))
    for module in [*_blocks(model), model]:
        fully_shard(module, mesh=mesh)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The largest parts of the model that are called one after the other: the members of its sequences."""
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            large = [child for child in module if sum(p.numel() for p in child.parameters()) >= _LEAST_NUMBERS]
            inner = {id(each) for outer in found for each in outer.modules()}
            found += [child for child in large if id(child) not in inner]
    return found


def sync_next(model: nn.Module, wanted: bool) -> None:
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """All weights on every rank: ranks may validate different numbers of batches without waiting for each other."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()
