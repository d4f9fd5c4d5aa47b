"""Models with channels innermost, and what must be kept out of it on a CPU.

oneDNN of torch 2.13 damages the heap there: its backward pass of a 1x1 convolution with a stride writes beyond the
gradient where the input has few channels (seen for 3, 4 and 8 of them on AVX-512: a crash, or none for a long while).
Such a convolution gets its input with channels outermost, as the weights stay.
"""

from typing import Any

import torch
from torch import Tensor, nn

_LEAST_CHANNELS = 16  # of one vector of AVX-512: from here on nothing was written beyond


def to_channels_last(model: nn.Module, device_kind: str) -> nn.Module:
    """The model itself, its weights with channels innermost."""
    convolutions = [each for each in model.modules() if isinstance(each, nn.Conv2d)]
    kept = [each for each in convolutions if device_kind == "cpu" and _is_damaging(each)]
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for each in kept:
        weight = each.weight.data
        each.weight.data = torch.empty(weight.shape, dtype=weight.dtype).copy_(weight)
        each.register_forward_pre_hook(_channels_first)
    return model


def _is_damaging(module: nn.Conv2d) -> bool:
    return set(module.kernel_size) == {1} and max(module.stride) > 1 and module.in_channels < _LEAST_CHANNELS


def _channels_first(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return (inputs[0].contiguous(), *inputs[1:])
