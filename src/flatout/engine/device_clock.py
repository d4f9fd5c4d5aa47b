"""Times what a GPU does by events in its own queue: no step waits for it, the host reads when it waits anyway."""

from collections.abc import Callable
from typing import Any

import torch

from flatout.engine.devices import Device


def cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class CudaClock:
    """A timeline.DeviceClock of one CUDA device: the time between two events belongs to the later one's name."""

    def __init__(self, new_event: Callable[[], Any] = cuda_event) -> None:
        self._new_event = new_event
        self._marks: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        event = self._new_event()
        event.record()
        self._marks.append((name, event))

    def shares(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for (_, start), (name, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds[name] = seconds.get(name, 0.0) + start.elapsed_time(end) / 1e3
        del self._marks[:-1]  # the last one is where the next stretch begins
        return seconds


def clock_for(device: Device) -> CudaClock | None:
    """None where the host waits for every operation anyway, or the device has no events that keep time."""
    return CudaClock() if device.kind == "cuda" else None
