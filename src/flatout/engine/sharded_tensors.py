"""Tensors that may be sharded over ranks (FSDP), for code that needs them complete. Plain tensors pass through."""

from typing import Any

from torch import Tensor


def gather_full(value: Tensor) -> Tensor:
    """The complete tensor. A collective where it is sharded: all ranks must call it."""
    sharded: Any = value
    gathered: Tensor = sharded.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered


def part(value: Tensor) -> Tensor:
    """This rank's part of it, in the same memory."""
    sharded: Any = value
    own: Tensor = sharded.to_local() if hasattr(value, "to_local") else value
    return own


def norms_of_whole(value: Tensor, norms: Tensor) -> Tensor:
    """From norms that each rank has of its own parts of tensors, sharded as `value` is: one exchange for all."""
    if not hasattr(value, "full_tensor"):
        return norms
    import torch.distributed as dist

    sharded: Any = value
    squares = norms.square()
    dist.all_reduce(squares, group=sharded.device_mesh.get_group())
    return squares.sqrt()


def shard_like(own: Tensor, value: Tensor) -> Tensor:
    """A complete tensor, sharded the way the model's own one is."""
    if not hasattr(own, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor  # slow to import, and rarely needed

    sharded: Any = own
    placed: Tensor = distribute_tensor(value.to(sharded.to_local().device), sharded.device_mesh, sharded.placements)
    return placed
