"""What a ResNet may have besides its blocks, each off unless the recipe asks for it (docs/faster.md)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from flatout.data.pixels.draws import fast_uniforms

_DEPTH = 16  # stream of the generator; those of a batch's pixels are below
_REDUCTION, _LEAST_HIDDEN = 16, 8


@dataclass(frozen=True)
class Extras:
    """The switches of `model.*` that change the network itself."""

    zero_gamma: bool = True
    blur_pool: bool = False
    squeeze_excite: bool = False


class Blur(nn.Module):
    """A 3x3 binomial filter of each channel, at every `stride`-th place (Zhang, 2019)."""

    kernel: Tensor

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        row = torch.tensor([0.25, 0.5, 0.25])
        filters = torch.outer(row, row).expand(channels, 1, 3, 3).contiguous()
        self.register_buffer("kernel", filters, persistent=False)  # weights of a net without it fit one with it
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        return F.conv2d(padded, self.kernel.to(x.dtype), stride=self.stride, groups=len(self.kernel))


class StridedConv(nn.Conv2d):
    """A padded convolution with a stride. Where its input has shrunk to one place, only the middle tap sees it; torch's
    bf16 kernels for CPUs leave the gradient of the others unwritten (2.13: whatever the memory held), so that there the
    middle tap is all that is computed."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is torch.bfloat16 and x.device.type == "cpu" and x.shape[2:] == (1, 1):
            middle = slice(self.kernel_size[0] // 2, self.kernel_size[0] // 2 + 1)
            return F.conv2d(x, self.weight[:, :, middle, middle].to(x.dtype))
        return super().forward(x)


class BlurredConv(StridedConv):
    """A convolution with a stride, of a blurred input; before it and not after it, where there are fewer places."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.blur = Blur(inputs)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.blur(x))


class SqueezeExcite(nn.Module):
    """A factor between 0 and 1 on each channel, from the means of all of them (Hu et al., 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(_LEAST_HIDDEN, channels // _REDUCTION)
        self.fc1, self.fc2 = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        gates = torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3))))))
        return x * gates[:, :, None, None]


def skip_rates(last: float, blocks: int) -> NDArray[np.float64]:
    """Of each block, in a line from `last` / `blocks` to `last` (Huang et al., 2016)."""
    return last * np.arange(1, blocks + 1) / blocks


def residual_scales(last: float, blocks: int, seed: int, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """[samples, blocks]: 0 where a sample skips a block's residual, else what keeps its mean.

    Of (seed, epoch, sample id) alone: the same on any number of ranks, in any batch, after any restart.
    """
    rates = skip_rates(last, blocks)
    kept = fast_uniforms(seed, epoch, ids, _DEPTH, blocks) >= rates
    return (kept / (1 - rates)).astype(np.float32)
