"""uint8 pixels to normalised floats, on whatever device they are."""

from functools import lru_cache

import torch
from torch import Tensor

from flatout.data.views import SHIPPED, View


@lru_cache(maxsize=64)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    scale = torch.tensor([1 / (255 * each) for each in std], dtype=dtype, device=device)
    bias = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=device)
    return scale[None, :, None, None], bias[None, :, None, None]


def normalize(
    images: Tensor,
    view: View | str = SHIPPED["train-224"],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Tensor:
    """(pixel / 255 - mean) / std for each channel of uint8 NCHW images, with the view's mean and std."""
    if isinstance(view, str):
        view = SHIPPED[view]
    scale, bias = _constants(view.mean, view.std, images.device, dtype)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.to(dtype, memory_format=layout).mul_(scale).add_(bias)
