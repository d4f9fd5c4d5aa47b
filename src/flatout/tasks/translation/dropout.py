"""Dropout that draws four numbers of 16 bits out of one of 64: on a CPU torch's own draws took an eighth of a step."""

import torch
from torch import Tensor, nn

_VALUES, _LEAST = 1 << 16, -(1 << 15)  # of the numbers drawn


class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU its probability is rounded to 1/65,536, and the scale with it, so that the mean stays."""

    own_draws = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.own_draws or not self.training or self.p == 0 or x.device.type != "cpu":
            return super().forward(x)
        dropped = min(_VALUES - 1, round(self.p * _VALUES))
        kept: Tensor = (x * _kept(x, dropped)).mul_(_VALUES / (_VALUES - dropped))
        return kept


def _kept(like: Tensor, dropped: int) -> Tensor:
    """Of the shape and type of `like`: 0 with a probability of `dropped` of 65,536, else 1."""
    count = like.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    draws = bits.view(torch.int16)[:count].view(like.shape)
    # compared straight into numbers: a product with booleans converts them first, which takes five times as long
    return torch.ge(draws, _LEAST + dropped, out=torch.empty(like.shape, dtype=like.dtype))
