"""Output layer and loss in one: a batch's logits, its largest tensor by far, are never kept whole."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS = 512  # of logits at a time: of 6,000 word pieces 12 MB, which a cache holds


class OutputLoss(torch.autograd.Function):
    """Cross-entropy of `hidden @ weight.T`, as F.cross_entropy of its fp32 logits gives it, mean over `labels`.

    The gradient is computed in the forward pass, of the sum: not for fp16, whose loss scale comes later.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """`hidden` [rows, width] and `weight` [classes, width] of one type, `labels` [rows]."""
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        total, classes = torch.zeros(()), len(weight)
        for first in range(0, len(labels), _ROWS):
            inner, wanted = hidden[first : first + _ROWS], labels[first : first + _ROWS, None]
            logs = torch.log_softmax(inner @ weight.t(), dim=1, dtype=torch.float32)
            total -= (1 - smoothing) * logs.gather(1, wanted).sum() + smoothing / classes * logs.sum()
            slope = logs.exp_().sub_(smoothing / classes)
            slope.scatter_add_(1, wanted, slope.new_full(wanted.shape, smoothing - 1))
            slope = slope.to(hidden.dtype)
            torch.mm(slope, weight, out=to_hidden[first : first + _ROWS])
            to_weight += slope.t() @ inner
        ctx.save_for_backward(to_hidden, to_weight.to(weight.dtype))
        ctx.rows = rows = max(1, len(labels))
        return total / rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_hidden, to_weight = ctx.saved_tensors
        scale = gradients[0] / ctx.rows
        return to_hidden * scale, to_weight * scale, None, None
