"""A device on a machine that has none, at the narrowest seam: who allocates pinned memory, the stream that copies, its
events. Copies happen late, and read memory by its address as a GPU does: nothing is kept alive for them."""

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, zeros_like


class FakePinned:
    """Hands out ordinary memory, and never takes it back: an address that was pinned once can be read for ever."""

    def __init__(self) -> None:
        self.allocated: list[NDArray[np.uint8]] = []

    def __call__(self, count: int) -> NDArray[np.uint8]:
        self.allocated.append(np.full(count, 0xEE, np.uint8))
        return self.allocated[-1][:]


def is_within(tensor: Tensor, memory: NDArray[np.uint8]) -> bool:
    start, first = memory.ctypes.data, tensor.data_ptr()
    return bool(start <= first and first + tensor.nbytes <= start + memory.nbytes)


@dataclass(frozen=True)
class LateEvent:
    stream: "LateStream"
    number: int  # of copies that are queued before it

    def query(self) -> bool:
        return self.stream.done >= self.number

    def synchronize(self) -> None:
        self.stream.host_waits += not self.query()
        self.stream.happen(self.number - self.stream.done)


class LateStream:
    """A CopyStream whose copies happen, in their order, when a test says so or somebody waits for one."""

    def __init__(self, computes_at_once: bool = False) -> None:
        self.done = self.host_waits = 0
        self.computes_at_once = computes_at_once  # on the CPU, which has no queue: what it waits for must be there
        self.queued_in: list[str] = []  # where the host was, if `current` says so
        self.current: Callable[[], str] | None = None
        self._queue: deque[tuple[Tensor, int]] = deque()

    def queue(self, copy: Callable[[], Any]) -> tuple[Any, LateEvent]:
        if self.current is not None:
            self.queued_in.append(self.current())
        inputs = copy()
        tensors = {name: value for name, value in vars(inputs).items() if isinstance(value, Tensor)}
        arriving = {name: zeros_like(value) for name, value in tensors.items()}
        self._queue.extend((arriving[name], value.data_ptr()) for name, value in tensors.items())
        return replace(inputs, **arriving), LateEvent(self, self.done + len(self._queue))

    def join(self, event: LateEvent, inputs: Any) -> None:
        if self.computes_at_once:
            self.happen(event.number - self.done)

    def happen(self, count: int) -> None:
        for _ in range(min(count, len(self._queue))):
            arriving, address = self._queue.popleft()
            ctypes.memmove(arriving.data_ptr(), address, arriving.nbytes)
            self.done += 1

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def finish(self) -> None:
        self.happen(len(self._queue))
