"""fp32, bf16 or fp16 arithmetic around fp32 master weights."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from flatout.engine.sharded_tensors import gather_full
from flatout.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LEAST_SCALE = 1e-4  # below it every step overflows: the loss itself is broken, and skipping would go on for ever


@dataclass(frozen=True)
class Seen:
    """What a logged step reads of the device."""

    loss: float
    gradient_norm: float | None  # before clipping; None where nobody asked for it, and in fp16
    scale: float | None  # of the loss, in fp16


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
        return torch.autocast(self.device_type, dtype=DTYPES[self.name])

    def backward(self, loss: Tensor) -> None:
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def gradient_norm(self, optimizer: Optimizer, parameters: Iterable[Tensor], wanted: bool) -> Tensor | None:
        """After backward: undo the scale; the gradients' norm, on the device, where it is asked for."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        return gather_full(get_total_norm([p.grad for p in parameters if p.grad is not None])) if wanted else None

    def read(self, loss: Tensor, norm: Tensor | None) -> Seen:
        """All that a logged step wants to know, for one wait."""
        scale = None
        if self.scaler is not None:  # it leaves out what overflowed: the norm of that says nothing
            norm, scale = None, self.scaler._get_scale_async()  # get_scale() would wait once more
        values = [value for value in (loss, norm, scale) if value is not None]
        read = iter(torch.stack(values).tolist())
        return Seen(next(read), *(None if value is None else next(read) for value in (norm, scale)))

    def step(
        self,
        optimizer: Optimizer,
        parameters: Iterable[Tensor] = (),
        clip_norm: float | None = None,
        norm: Tensor | None = None,
    ) -> None:
        """Clip by the norm that `gradient_norm` gave, and step; in fp16 the scaler leaves out what overflowed."""
        if clip_norm is not None and norm is not None:
            clip_grads_with_norm_(parameters, clip_norm, norm)
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer)
        self.scaler.update()

    def scalars(self) -> dict[str, float | int]:
        """The scaler's state for a checkpoint, ready for JSON; empty without a scaler."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def load_scalars(self, scalars: Mapping[str, float | int]) -> None:
        """A checkpoint of another precision brings no scale, or one that is not needed: the scaler then starts anew."""
        if self.scaler is not None and scalars:
            self.scaler.load_state_dict(dict(scalars))


class Autocast(nn.Module):
    """Enters autocast in the thread it is called in: those of DataParallel do not know its dtype."""

    def __init__(self, inner: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.inner = inner
        self.precision = precision

    def forward(self, *inputs: Any) -> Any:
        with self.precision.autocast():
            return self.inner(*inputs)


def build_precision(name: str, device_type: str) -> Precision:
    """`device_type` is torch's: cpu, cuda or mps."""
    if name == "fp16" and device_type != "cuda":
        raise ConfigError(f"train.precision is fp16, which needs a CUDA device, not {device_type}; use bf16 or fp32")
    return Precision(name, device_type, GradScaler(device_type) if name == "fp16" else None)
