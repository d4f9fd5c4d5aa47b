"""Memory that batches are prepared in: ordinary, or page-locked ("pinned"), from which a GPU fetches by itself while
the host goes on. Without torch until some is pinned: worker processes never load it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class HostMemory:
    allocate: Callable[[int], NDArray[np.uint8]]
    granted_bytes: Callable[[int], int]
    """What an allocation of so many bytes takes in truth."""
    is_pinned: bool


def pageable(count: int) -> NDArray[np.uint8]:
    return np.empty(count, np.uint8)


def pinned(count: int) -> NDArray[np.uint8]:
    import torch

    values: NDArray[np.uint8] = torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy()
    return values


def power_of_two(count: int) -> int:
    """torch's allocator of pinned memory rounds up to one, so the rest may as well be used."""
    return 1 << (max(1, count) - 1).bit_length()


PAGEABLE = HostMemory(pageable, lambda count: count, is_pinned=False)


def memory_for(device_kind: str) -> HostMemory:
    """Pinned where the device is CUDA. Only for consumers that keep a batch until the device has copied it
    (engine/copying.py): the driver takes its own copy of pageable memory before it returns, not of pinned memory."""
    return HostMemory(pinned, power_of_two, is_pinned=True) if device_kind == "cuda" else PAGEABLE
