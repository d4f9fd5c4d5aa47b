"""uint8 pixels to normalised floats, on whatever device they are."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from flatout.data.loading.pools import Buffers
from flatout.data.pixels.decode import native
from flatout.data.pixels.views import SHIPPED, View

_FLOATS = Buffers()


@lru_cache(maxsize=64)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    scale = torch.tensor([1 / (255 * each) for each in std], dtype=dtype, device=device)
    bias = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=device)
    return scale[None, :, None, None], bias[None, :, None, None]


def _factors(view: View, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Kept from call to call, but not those of a trace: fake tensors would come back in a real training."""
    make = _constants if _get_current_dispatch_mode() is None else _constants.__wrapped__
    return make(view.mean, view.std, device, dtype)


def _normalize_compiled(images: Tensor, view: View) -> Tensor:
    """One pass over memory, cut over the cores this process computes with."""
    assert native is not None
    scale, bias = _factors(view, images.device, torch.float32)
    factors, out = torch.cat([scale.reshape(3), bias.reshape(3)]).numpy(), _used_memory(images)
    parts = min(len(images), torch.get_num_threads())
    if parts <= 1 or images.numel() < 2**20:
        native.normalize(images.numpy(), out.numpy(), factors)
        return out
    pieces = zip(images.chunk(parts), out.chunk(parts), strict=True)
    list(_threads().map(lambda pair: native.normalize(pair[0].numpy(), pair[1].numpy(), factors), pieces))
    return out


def _normalize_in_cache(images: Tensor, view: View) -> Tensor:
    """Image by image, each of which stays in the caches from one pass to the next; by numpy, whose passes do not wake
    torch's threads while workers need the cores."""
    scale, bias = (each[0].numpy() for each in _factors(view, images.device, torch.float32))
    out = _used_memory(images)
    for pixels, floats in zip(images.numpy(), out.numpy(), strict=True):
        floats[...] = pixels
        floats *= scale
        floats += bias
    return out


def _used_memory(images: Tensor) -> Tensor:
    """Room for their floats. Fresh memory would be mapped page by page: five times the time of the arithmetic."""
    return torch.from_numpy(_FLOATS.take((4 * images.numel(),)).view(np.float32).reshape(tuple(images.shape)))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), "flatout-normalize")


def normalize(
    images: Tensor,
    view: View | str = SHIPPED["train-224"],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Tensor:
    """(pixel / 255 - mean) / std for each channel of uint8 NCHW images, with the view's mean and std."""
    if isinstance(view, str):
        view = SHIPPED[view]
    scale, bias = _factors(view, images.device, dtype)
    if images.device.type == "cpu" and dtype == torch.float32 and not channels_last:
        if native is not None:
            return _normalize_compiled(images.contiguous(), view)
        return _normalize_in_cache(images, view)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.to(dtype, memory_format=layout).mul_(scale).add_(bias)
