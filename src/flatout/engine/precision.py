"""fp32, bf16 or fp16 arithmetic around fp32 master weights."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from flatout.engine.whole_tensors import whole
from flatout.errors import ConfigError, NotFinite

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LEAST_SCALE = 1e-4  # below it every step overflows: the loss itself is broken, and skipping would go on for ever


@dataclass(frozen=True)
class StepOutcome:
    """`applied` is False where fp16 overflowed and the step was skipped; `gradient_norm` is the norm before clipping,
    on the device, or None where nobody asked for it."""

    applied: bool
    gradient_norm: Tensor | None


@dataclass(frozen=True)
class Precision:
    """Make one with `build_precision`. The scaler exists for fp16 only, whose small gradients would round to zero."""

    name: str
    device_type: str
    scaler: GradScaler | None = None

    def autocast(self) -> AbstractContextManager[object]:
        """Around forward and loss; backward needs none."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device_type, dtype=_DTYPES[self.name])

    def backward(self, loss: Tensor) -> None:
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def step(
        self,
        optimizer: Optimizer,
        parameters: Iterable[Tensor],
        clip_norm: float | None = None,
        check_finite: bool = True,
    ) -> StepOutcome:
        """Unscale, clip, check, step. Raises NotFinite before the weights are touched.

        The check waits for the device in fp32 and bf16; on an accelerator ask for it on logged steps only. In fp16 the
        scaler looks at every step anyway and skips those that overflow.
        """
        parameters = list(parameters)
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        check_finite = check_finite and self.scaler is None
        norm = _clip(parameters, clip_norm) if clip_norm is not None or check_finite else None
        if check_finite and norm is not None and not math.isfinite(norm.item()):
            raise NotFinite(f"the gradient's norm is {norm.item()}; lower train.lr or look at the loss of this batch")
        if self.scaler is None:
            optimizer.step()
            return StepOutcome(True, norm)
        return StepOutcome(_scaled_step(self.scaler, optimizer), norm)

    def scalars(self) -> dict[str, float | int]:
        """The scaler's state for a checkpoint, ready for JSON; empty without a scaler."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def load_scalars(self, scalars: Mapping[str, float | int]) -> None:
        """A checkpoint of another precision brings no scale, or one that is not needed: the scaler then starts anew."""
        if self.scaler is not None and scalars:
            self.scaler.load_state_dict(dict(scalars))


def build_precision(name: str, device_type: str) -> Precision:
    """`device_type` is torch's: cpu, cuda or mps."""
    if name not in _DTYPES:
        raise ConfigError(f"train.precision is {name!r}; it must be one of {', '.join(_DTYPES)}")
    if name == "fp16" and device_type != "cuda":
        raise ConfigError(f"train.precision is fp16, which needs a CUDA device, not {device_type}; use bf16 or fp32")
    return Precision(name, device_type, GradScaler(device_type) if name == "fp16" else None)


def _clip(parameters: list[Tensor], clip_norm: float | None) -> Tensor:
    norm = whole(get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if clip_norm is not None:
        clip_grads_with_norm_(parameters, clip_norm, norm)
    return norm


def _scaled_step(scaler: GradScaler, optimizer: Optimizer) -> bool:
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    after = scaler.get_scale()
    if after < _LEAST_SCALE:
        raise NotFinite(f"fp16 gradients overflow even at a loss scale of {after:g}; use bf16 or a lower train.lr")
    return after >= before
