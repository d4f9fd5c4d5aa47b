"""Producers that are called: Ray tasks and AWS Lambda functions.

They run one function, `prepare_bytes`, on a machine that has the package and sees the data. A stream stays open for
the next call of the same worker process; the call that opens it reports a cold start.
"""

import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from flatout.cache.bundle import check_bundle
from flatout.errors import FlatoutError
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.producers.producer import make_batch
from flatout.service.protocol.extras import connect_to_ray
from flatout.service.protocol.messages import Done, Failed, Joined, Message, Produce
from flatout.service.protocol.specs import AnotherDataset, ImagePreparer, batch_key, open_preparer, stream_name
from flatout.service.protocol.stream_spec import StreamSpec

_open: dict[str, ImagePreparer] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class Made:
    """The result of one call."""

    data: Any  # the bundle as bytes; None where the function has written it to the store itself
    bytes: int
    cold: bool
    gb_seconds: float = 0.0


def prepare_bytes(spec: StreamSpec, epoch: int, index: int, most_bytes: int) -> Made:
    """Make one batch in this process, in a buffer of `most_bytes`."""
    stream = stream_name(spec)
    with _opening:
        cold = stream not in _open
        if cold:
            _open[stream] = open_preparer(spec)
    space = bytearray(most_bytes)
    count = make_batch(_open[stream], epoch, index, memoryview(space), batch_key(stream, epoch, index))
    return Made(memoryview(space)[:count], count, cold)


class Caller(Protocol):
    """Calls `prepare_bytes` somewhere else. Safe to use from several threads."""

    name: str
    slots: int  # calls at once
    usd_per_second: float
    seconds_to_start: float  # expected time of a cold start

    def call(self, spec: StreamSpec, order: Produce) -> Made: ...

    def close(self) -> None: ...


class CallPool:
    """Threads that each wait for one call, and write its result to the store; a producer to the coordinator."""

    def __init__(self, coordinator: Coordinator, caller: Caller) -> None:
        self._coordinator = coordinator
        self._caller = caller
        self._specs: dict[str, StreamSpec] = {}
        self._orders: queue.SimpleQueue[Produce | None] = queue.SimpleQueue()
        self._closed = False

    def start(self) -> None:
        self._coordinator.attach(self._caller.name, self._receive, self._replace_hung)
        self._join()
        for _ in range(self._caller.slots):
            self._start_thread()

    def close(self) -> None:
        self._closed = True
        for _ in range(self._caller.slots):
            self._orders.put(None)
        self._caller.close()

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name=f"flatout-{self._caller.name}", daemon=True).start()

    def _join(self) -> None:
        caller = self._caller
        joined = Joined(
            slots=caller.slots, usd_per_second=caller.usd_per_second, seconds_to_start=caller.seconds_to_start
        )
        self._coordinator.say(caller.name, joined)

    def _receive(self, *messages: Message) -> None:
        for message in messages:
            if isinstance(message, Produce):
                if message.spec is not None:
                    self._specs[message.stream] = message.spec
                self._orders.put(message)

    def _replace_hung(self, reason: str) -> None:
        """A call cannot be cancelled: its thread is abandoned, and another one started in its place."""
        if not self._closed:
            self._start_thread()
            threading.Thread(target=self._join, daemon=True).start()  # the coordinator holds its lock here

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            self._coordinator.say(self._caller.name, self._done(order))

    def _done(self, order: Produce) -> Message:
        began = time.perf_counter()
        try:
            made = self._caller.call(self._specs[order.stream], order)
            if made.data is not None:
                self._keep(order, made)
            seconds = time.perf_counter() - began
            return Done(
                lease=order.lease, bytes=made.bytes, seconds=seconds, cold=made.cold, gb_seconds=made.gb_seconds
            )
        except AnotherDataset as error:
            return Failed(lease=order.lease, reason=str(error)[:2000], stream_is="another")
        except (FlatoutError, OSError, ValueError, KeyError) as error:
            return Failed(lease=order.lease, reason=f"{type(error).__name__}: {error}"[:2000])

    def _keep(self, order: Produce, made: Made) -> None:
        """Verified first: what is in the store under the service's seal, jobs take as it is."""
        store, key = self._coordinator.store, batch_key(order.stream, order.epoch, order.index)
        data = np.frombuffer(made.data, np.uint8)
        check_bundle(data.data, key, verify=True)
        space = store.space(order.buffer, order.bytes)
        np.frombuffer(space, np.uint8)[: len(data)] = data
        store.commit(order.buffer, key, space, len(data))


class RayCaller:
    """Ray tasks on a cluster (needs the `ray` extra); None as address starts a local one."""

    usd_per_second = 0.0
    seconds_to_start = 0.0

    def __init__(self, address: str | None = None, slots: int = 4) -> None:
        self.name, self.slots = "ray", slots
        self._ray = connect_to_ray(address)
        self._task = self._ray.remote(_ray_task)

    def call(self, spec: StreamSpec, order: Produce) -> Made:
        reference = self._task.options(name=f"batch {order.epoch}/{order.index}").remote(
            spec.model_dump(), order.epoch, order.index, order.bytes
        )
        try:
            data, count, cold = self._ray.get(reference, timeout=120.0)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            raise (
                cause if isinstance(cause, AnotherDataset) else FlatoutError(f"the Ray task failed: {error}")
            ) from None
        return Made(data, count, cold)

    def close(self) -> None:
        with suppress(Exception):  # a cluster that is gone already
            self._ray.shutdown()


def _ray_task(spec: Mapping[str, Any], epoch: int, index: int, most_bytes: int) -> tuple[Any, int, bool]:
    made = prepare_bytes(StreamSpec.model_validate(spec), epoch, index, most_bytes)
    return np.frombuffer(made.data, np.uint8), made.bytes, made.cold  # an array: Ray hands it over without a copy
