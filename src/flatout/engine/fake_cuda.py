"""Tensors that say they are on a GPU, on a machine without one: shapes, types and devices are right, numbers are not.

On torch's CPU build they cannot take part in autograd (the process would be aborted), so nothing here requires a
gradient while it computes, and a few operations that ask for a device's guard are answered here instead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from flatout.engine.devices import Device

CUDA = torch.device("cuda", 0)


@dataclass(frozen=True)
class FakeCuda(Device):
    """An Ampere card or newer, which is not here."""

    @property
    def sixteen_bit(self) -> str | None:
        return "bf16"

    def wait(self) -> None:
        pass

    def memory_peak_bytes(self) -> int | None:
        return None


def fake_device() -> FakeCuda:
    """A CUDA device that is not there."""
    return FakeCuda("cuda", CUDA, "a CUDA device that is not here")


def _copy(own: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
    torch.broadcast_shapes(own.shape, other.shape)  # type: ignore[no-untyped-call]  # or it does not fit
    return own


def _read(own: Tensor) -> float | int | bool:
    """Some value of the type: nobody knows which. Not 0, which may be divided by."""
    return 1.0 if own.dtype.is_floating_point else 1 if own.dtype is not torch.bool else False


_ANSWERS: dict[str, Callable[..., Any]] = {
    "copy_": _copy,
    "__getitem__": lambda own, key: _indexed(own, key if isinstance(key, tuple) else (key,)),
    "__setitem__": lambda own, key, value: None,
    **dict.fromkeys(("item", "__bool__", "__int__", "__float__", "__index__"), _read),
}
"""What torch's CPU build cannot do with tensors of a GPU, and what no fake tensor can: be read."""


def _answering(name: str) -> Callable[..., Any]:
    answer, own_method = _ANSWERS[name], getattr(Tensor, name)

    def method(own: Tensor, *arguments: Any, **options: Any) -> Any:
        if isinstance(own, FakeTensor) and (own.device.type == "cuda" or answer is _read):
            return answer(own, *arguments, **options)
        with _disable_current_modes() if answer is _read else nullcontext():  # the host's own value
            return own_method(own, *arguments, **options)

    return method


@contextmanager
def fakes() -> Iterator[None]:
    """Inside, new tensors are fake, and real ones become so when they are used. One thread at a time: for as long, the
    methods of torch.Tensor answer for tensors that have no device to do it."""
    kept = {name: Tensor.__dict__.get(name) for name in _ANSWERS}
    for name in _ANSWERS:
        setattr(Tensor, name, _answering(name))
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        for name, before in kept.items():
            delattr(Tensor, name) if before is None else setattr(Tensor, name, before)


def _indexed(value: Tensor, keys: tuple[Any, ...]) -> Tensor:
    """value[keys], one key at a time."""
    dimension, chosen = 0, {}
    for key in keys:
        if isinstance(key, int):
            value = value.select(dimension, key)
            continue
        if key is None:
            value = value.unsqueeze(dimension)
        elif isinstance(key, slice):
            value = torch.ops.aten.slice.Tensor(value, dimension, key.start, key.stop, key.step or 1)
        else:
            chosen[dimension] = key
        dimension += 1
    if not chosen:
        return value
    indices = [chosen.get(at) for at in range(max(chosen) + 1)]
    return torch.ops.aten.index.Tensor(value, indices)  # type: ignore[no-any-return]


def moved(model: nn.Module, device: torch.device, trains: bool = False) -> nn.Module:
    """Give the model fake weights on the device, in place, with the strides of its own."""

    def fake(value: Tensor) -> Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(fake(weight), requires_grad=trains)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fake(buffer)
    return model


@contextmanager
def autocast_to(dtype: torch.dtype | None) -> Iterator[None]:
    """torch.autocast turns itself off where there is no CUDA; its switches can be set all the same."""
    if dtype is None:
        yield
        return
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)
