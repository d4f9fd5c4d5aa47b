"""Output layer and loss in one: a batch's logits, its largest tensor by far, are never kept whole."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS = 512  # of logits at a time: of 6,000 word pieces 12 MB, which a cache holds


class OutputLoss(torch.autograd.Function):
    """Cross-entropy of `hidden @ weight.T`, as F.cross_entropy of its fp32 logits gives it, mean over the labels that
    are not `ignored`.

    The gradient is computed in the forward pass, of the sum: not for fp16, whose loss scale comes later.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, ignored: int) -> Tensor:
        """`hidden` [rows, width] and `weight` [classes, width] of one type, `labels` [rows]."""
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        total, classes = torch.zeros(()), len(weight)
        # 0 or 1: picking rows would be less work, but kernels are kept by shape, and their number is never the same
        counts = (labels != ignored).to(hidden.dtype)[:, None]
        for first in range(0, len(labels), _ROWS):
            rows = slice(first, first + _ROWS)
            inner, wanted = hidden[rows], labels[rows].unsqueeze(1)
            logs = torch.log_softmax(inner @ weight.t(), dim=1, dtype=torch.float32)
            each = (1 - smoothing) * logs.gather(1, wanted) + smoothing / classes * logs.sum(dim=1, keepdim=True)
            total -= (each * counts[rows]).sum()
            slope = logs.exp_().sub_(smoothing / classes)
            slope.scatter_add_(1, wanted, slope.new_full(wanted.shape, smoothing - 1))
            slope = slope.to(hidden.dtype)
            torch.mul(slope @ weight, counts[rows], out=to_hidden[rows])
            to_weight += slope.t() @ (inner * counts[rows])
        counted = (labels != ignored).sum().clamp(min=1)
        ctx.save_for_backward(to_hidden, to_weight.to(weight.dtype), counted)
        return total / counted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        to_hidden, to_weight, counted = ctx.saved_tensors
        scale = gradients[0] / counted
        return to_hidden * scale, to_weight * scale, None, None, None
