"""Where a CUDA device keeps other tensors than the CPU that a model is traced on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_IN_FP32 = {
    F.layer_norm,
    torch.layer_norm,
    F.group_norm,
    torch.group_norm,
    F.softmax,
    torch.softmax,
    Tensor.softmax,
    F.log_softmax,
    torch.log_softmax,
    Tensor.log_softmax,
    F.cross_entropy,
    F.nll_loss,
    F.smooth_l1_loss,
    F.binary_cross_entropy_with_logits,
}
"""What autocast computes in 32 bits on CUDA and in 16 on a CPU: their results are kept for backward."""
_DROPOUTS = {F.dropout, torch.dropout, F.alpha_dropout}


class CudaRules(TorchFunctionMode):
    """On CUDA dropout keeps one byte for each element, not a mask of floats, and autocast leaves norms and losses in
    32 bits. On while the forward pass of a step is traced on a CPU."""

    def __init__(self, autocast: bool) -> None:
        super().__init__()
        self._autocast = autocast

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return _dropout(*args, **kwargs)
        if self._autocast and func in _IN_FP32:
            with torch.autocast("cpu", enabled=False):
                return func(*(_widened(each) for each in args), **{key: _widened(each) for key, each in kwargs.items()})
        return func(*args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """A keyword of F.dropout is called `train` in torch.dropout; both pass it third."""
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def _widened(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
