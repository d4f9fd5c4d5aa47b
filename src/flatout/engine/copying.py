"""Batches on their way to the device. CUDA has a stream for them beside the one that computes, so that a batch arrives
while the one before it is still computed; everywhere else the copy is made when it is asked for.

What makes this safe is one rule, for the memory of every source: a batch is kept until the event behind its copy has
come to pass. Loaders use memory again when the last reference to it is gone (data/loading/pools.py,
service/client/pool.py).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.data.batch import AnyBatch
from flatout.engine.devices import Device
from flatout.tasks.protocol import Task
from flatout.timeline import Recorder


class Event(Protocol):
    """Completes on the device when everything that was queued before it is done."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class CopyStream(Protocol):
    """A queue of transfers beside the stream that computes."""

    def queue(self, copy: Callable[[], Any]) -> tuple[Any, Event]:
        """Call `copy` so that its transfers are queued beside the computing; what it returns, and the event behind."""
        ...

    def join(self, event: Event, inputs: Any) -> None:
        """What is queued for computing from here on comes after the event; the host does not wait. The memory of the
        inputs is not given to a later copy before what computes on them is done."""
        ...


class CudaCopyStream:
    """A CopyStream of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def queue(self, copy: Callable[[], Any]) -> tuple[Any, Event]:
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # it does not wait for the stream that computes: what it writes to is memory that nobody uses
        with torch.cuda.stream(self._stream):
            inputs = copy()
            event.record(self._stream)
        return inputs, event

    def join(self, event: Event, inputs: Any) -> None:
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(event)  # type: ignore[arg-type]  # one that `queue` gave
        for tensor in tensors_in(inputs):
            tensor.record_stream(computing)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Of whatever a task's `to_device` gives: dataclasses, mappings and sequences, in each other."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        yield from tensors_in(vars(value))
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each)


@dataclass(frozen=True)
class _Copy:
    batch: Any
    inputs: Any
    event: Event


class Copies:
    """From batches to inputs on the device, of one job; without a stream when they are asked for."""

    def __init__(self, to_device: Callable[[Any], Any], stream: CopyStream | None) -> None:
        self._to_device = to_device
        self._stream = stream
        self._started: _Copy | None = None  # the newest, until its inputs are asked for
        self._under_way: deque[tuple[Event, Any]] = deque()  # and the batch the device reads from, oldest first

    @property
    def overlap(self) -> bool:
        """Whether a copy can be under way while something else is computed."""
        return self._stream is not None

    def start(self, batch: Any) -> None:
        """Queue the copy of the batch whose inputs are asked for next."""
        assert self._stream is not None
        inputs, event = self._stream.queue(lambda: self._to_device(batch))
        self._under_way.append((event, batch))
        self._started = _Copy(batch, inputs, event)

    def inputs(self, batch: Any) -> Any:
        """The batch's tensors on the device; work that is queued after this call waits for their copy."""
        if self._stream is None:
            return self._to_device(batch)
        if self._started is None or self._started.batch is not batch:
            self.start(batch)
        assert self._started is not None
        copy, self._started = self._started, None
        self._stream.join(copy.event, copy.inputs)
        return copy.inputs

    def release_finished(self) -> None:
        """Before another batch is taken: let go of those whose copy has ended, and of all but one in any case. A loader
        counts on no more (machine/budgets.py); the host hardly ever waits here: a copy never waits for computing."""
        while self._under_way and (len(self._under_way) > 1 or self._under_way[0][0].query()):
            event, _ = self._under_way[0]
            event.synchronize()
            self._under_way.popleft()


def copies_for(task: Task, device: Device) -> Copies:
    """Copies for a task's batches to a device; they overlap with computing on CUDA only."""
    stream = CudaCopyStream(device.torch) if device.torch.type == "cuda" else None
    return Copies(lambda batch: task.to_device(batch, device.torch), stream)


class Feed:
    """The batches of an epoch in their order; the copy of the next one may start early. With a recorder, waiting for
    that batch and copying it are spans of the ledger."""

    def __init__(self, batches: Iterator[AnyBatch], copies: Copies, recorder: Recorder | None = None) -> None:
        self._batches = batches
        self._copies = copies
        self._recorder = recorder
        self._ahead: AnyBatch | Exception | None = None

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> AnyBatch:
        if self._ahead is None:
            self._copies.release_finished()
            return next(self._batches)
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            raise ahead
        return ahead

    def look_ahead(self) -> float:
        """Before the host waits for the device: start the copy of the next batch; seconds it was waited for. Nothing
        happens where copies cannot overlap. What is wrong with that batch is raised when it is asked for: the present
        one is to be finished, and may be the last."""
        if not self._copies.overlap or self._ahead is not None:
            return 0.0
        asked = time.perf_counter()
        with self._span("data_wait"):
            try:
                batch = next(self)
            except Exception as error:  # the end of the epoch too
                self._ahead = error
                return time.perf_counter() - asked
        waited = time.perf_counter() - asked
        with self._span("copy"):
            self._copies.start(batch)
        self._ahead = batch
        return waited

    def _span(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._recorder is None else self._recorder.span(name)
