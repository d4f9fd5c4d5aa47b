"""Hooks of what computes gradients: backward(), autograd.grad, and the scale that a loss may be given before."""

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from flatout.recording.ledger import ScriptLedger

_BEGIN_BACKWARD, _END_BACKWARD = ScriptLedger.begin_backward, ScriptLedger.end_backward
_get_ident = threading.get_ident
_has_process_group = getattr(torch.distributed, "is_initialized", lambda: False)  # without it where torch lacks it


class HookedProcess(Protocol):
    """What is hooked for one process; `ledger` may change (a fork)."""

    ledger: ScriptLedger | None
    count_steps: bool

    def mine(self) -> ScriptLedger | None:
        """The ledger, where this is its thread."""

    def patch(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Until the hooks are taken out."""


class GradientHooks:
    def __init__(self, process: HookedProcess) -> None:
        self._process = process
        self._scaled: tuple[Callable[[], Any] | None, float | None] = (None, None)
        """The tensor that was scaled last, and what it was before."""

    def hook_backward(self) -> None:
        def wrapper(original: Any) -> Any:
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                ledger = self._process.ledger
                if ledger is None or _get_ident() != ledger.thread:
                    return original(tensors, *args, **kwargs)
                ledger.saw(_BEGIN_BACKWARD, self._loss_of(tensors))
                computed: list[float] = []
                handle = _watch_end(tensors, computed)
                try:
                    return original(tensors, *args, **kwargs)
                finally:
                    if handle is not None:
                        handle.remove()
                    ledger.saw(_END_BACKWARD, computed[0] if computed else None, self._process.count_steps)

            return backward

        self._process.patch(torch.autograd, "backward", wrapper)
        self._process.patch(torch.autograd, "grad", self._grad_wrapper)

    def hook_scaling(self) -> None:
        """A scaled loss is not the script's loss: the scale alone may double it."""

        def wrapper(original: Any) -> Any:
            def scale(scaler: Any, outputs: Any) -> Any:
                scaled = original(scaler, outputs)
                if isinstance(scaled, torch.Tensor) and self._process.mine() is not None:
                    self._scaled = weakref.ref(scaled), _value_at_hand(outputs)
                return scaled

            return scale

        self._process.patch(torch.amp.GradScaler, "scale", wrapper)

    def _loss_of(self, tensors: Any) -> float | None:
        scaled, loss = self._scaled
        return loss if scaled is not None and scaled() is tensors else _value_at_hand(tensors)

    def _grad_wrapper(self, original: Any) -> Any:
        """Gradients that are asked for: by the script, or by torch.func. Inside a module they are part of its call."""

        def grad(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            ledger = self._process.mine()
            if ledger is None or ledger.inside:
                return original(*args, **kwargs)
            ledger.saw(_BEGIN_BACKWARD, None, True)
            try:
                return original(*args, **kwargs)
            finally:
                ledger.saw(_END_BACKWARD, None, self._process.count_steps, True)

        return grad


def _value_at_hand(tensors: Any) -> float | None:
    """The loss, where reading it waits for nothing and nobody: not of a device, nor of a tensor that ranks share."""
    loss = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
    if type(loss) is not torch.Tensor or not loss.is_cpu:
        return None
    try:
        return float(loss.item())
    except Exception:  # more than one value; and inside a transform of torch.func there is none
        return None


def _watch_end(tensors: Any, computed: list[float]) -> Any:
    """With several ranks: when the last gradient of this rank was there. The engine runs what is queued after that in
    order, and the exchange of gradients queues its own wait later than this."""
    if not _has_process_group():
        return None
    with suppress(Exception):
        loss = tensors[0] if isinstance(tensors, tuple | list) else tensors

        def began(_: Any) -> None:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: computed.append(time.perf_counter()))

        return loss.register_hook(began)
    return None
