"""Batch norm over the global batch, on any device: sums from all ranks, so unequal parts weigh what they should."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class GlobalBatchNorm(nn.BatchNorm2d):
    """`absent` marks a rank without samples: it takes part in the exchange and counts for nothing.

    Where every rank has as many samples (`equal_parts`, the same on all ranks), a GPU takes torch's own kernels: they
    keep one copy of the activations for backward, the sums below two.
    """

    absent = False
    equal_parts = False
    process_group = None  # all ranks
    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        if input.is_cuda and self.equal_parts:
            return nn.SyncBatchNorm.forward(self, input)  # type: ignore[arg-type]
        self._check_input_dim(input)
        result, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, self.absent
        )
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean), share)
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_var.lerp_(unbiased.to(self.running_var), share)
        return result  # type: ignore[no-any-return]


def convert(module: nn.Module) -> nn.Module:
    """Every 2-d batch norm inside becomes one over the global batch; weights and names stay."""
    for child in module.children():
        if isinstance(child, nn.BatchNorm2d):
            child.__class__ = GlobalBatchNorm  # the same state, another forward
        else:
            convert(child)
    return module


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, absent: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        channels, values = x.shape[1], _wide(x)
        own_variance, own_mean = torch.var_mean(values, (0, 2, 3), correction=0)
        own_count = own_mean.new_full((channels,), 0 if absent else x.numel() / channels)
        own = torch.stack([own_count, own_mean, own_variance]).double()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        # of parts, not of squares: the difference of two large sums would leave little of a small variance
        counts, means, variances = torch.stack(parts).unbind(1)
        count = counts.sum(0)[0].clamp(min=1)
        mean = (counts * means).sum(0) / count
        variance = (counts * (variances + (means - mean).square())).sum(0) / count
        inverse = (variance + eps).rsqrt().to(values)
        centred = (values - mean.to(values)[:, None, None]) * inverse[:, None, None]
        ctx.save_for_backward(centred, weight, inverse, count)
        ctx.absent = absent
        ctx.mark_non_differentiable(mean, variance, count)
        return (centred * weight[:, None, None] + bias[:, None, None]).to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        centred, weight, inverse, count = ctx.saved_tensors
        gradient = _wide(gradient)
        by_channel = gradient.sum((0, 2, 3)), (gradient * centred).sum((0, 2, 3))
        sums = torch.cat(by_channel).double()
        dist.all_reduce(sums)
        mean_gradient, mean_product = (sums / count).to(gradient).chunk(2)
        inner = gradient - mean_gradient[:, None, None] - centred * mean_product[:, None, None]
        if ctx.absent:  # its made-up sample was no part of the means
            inner = torch.zeros_like(gradient)
        return inner * (weight * inverse)[:, None, None], by_channel[1], by_channel[0], None, None


def _wide(values: Tensor) -> Tensor:
    """Sums of 16-bit numbers need more room."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
