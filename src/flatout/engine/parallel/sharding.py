"""FSDP2: every rank keeps a part of weights, gradients and optimizer state: for models that do not fit one device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from flatout.engine.precision import DTYPES

_LEAST_NUMBERS = 100_000  # a block below it is sharded with its parent: many small exchanges cost more than they save


def shard(model: nn.Module, device_type: str, world_size: int, precision: str = "fp32") -> None:
    """In place, block by block; parameters become new objects, so the optimizer is built afterwards."""
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP takes no other
    mesh = init_device_mesh(device_type, (world_size,))
    policy = mixed_precision(model, device_type, precision)
    for module in [*_blocks(model), model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=module is not model, mp_policy=policy)


def mixed_precision(model: nn.Module, device_type: str, precision: str) -> MixedPrecisionPolicy:
    """Weights travel in the precision that autocast computes in, gradients in fp32, as they are added up.

    Not on a CPU, whose layer norm takes no bf16 weights for fp32 values, nor with batch norm, which wants its weights
    in the type of its statistics: there they travel in fp32.
    """
    normalises = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if precision == "fp32" or device_type != "cuda" or normalises:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(DTYPES[precision], torch.float32, cast_forward_inputs=False)  # autocast casts them


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
    """Whether the next backward of a sharded model reduces its gradients."""
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
            part.set_reshard_after_forward(part is not model, recurse=False)  # the root's weights are needed at once
            part.reshard()
