"""A process that makes batches into the store: `python -m flatout.service.producers.producer FD THREADS`.

Started anew, not forked; it ends when its connection or its parent does. Orders are carried out by threads, since the
compiled decoder releases the GIL. Torch is not imported, so that it starts in a fraction of a second.
"""

import os
import queue
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from flatout.cache.batch_store import BatchStore
from flatout.cache.bundle import SUM_EVERY, payload, write_bundle
from flatout.errors import FlatoutError, ServiceUnavailable
from flatout.machine.parents import exit_with_parent
from flatout.service.coordinator.policy import SMALL_BATCH_SECONDS
from flatout.service.protocol.messages import Done, Equip, Failed, Joined, Message, Produce
from flatout.service.protocol.specs import AnotherDataset, ImagePreparer, batch_key, open_preparer
from flatout.service.protocol.stream_spec import StreamSpec
from flatout.service.protocol.wire import Wire
from flatout.service.transport.stores import StoreAccess, open_batch_store

_ANSWERS_PER_SEND = 8  # of small batches


class Maker:
    """Carries out orders, and answers each with Done or Failed. Safe to use from several threads."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self._specs: dict[str, StreamSpec] = {}
        self._preparers: dict[str, ImagePreparer | Failed] = {}
        self._opening = threading.Lock()

    def learn(self, order: Produce) -> None:
        """Keep the spec of the stream; called for each order, in the order in which they come."""
        if order.spec is not None:
            self._specs[order.stream] = order.spec

    def make(self, order: Produce, began: float | None = None) -> Message:
        """`began`: when the thread was free for the order, so that sending the answer before counts as part of this."""
        began = time.perf_counter() if began is None else began
        cold = order.stream not in self._preparers
        preparer = self.preparer(order.stream)
        if isinstance(preparer, Failed):
            return preparer.model_copy(update={"lease": order.lease})
        try:
            space, key = self._store.space(order.buffer, order.bytes), batch_key(order.stream, order.epoch, order.index)
            count = make_batch(preparer, order.epoch, order.index, space, key, SUM_EVERY)
            self._store.commit(order.buffer, key, space, count)
            return Done(lease=order.lease, bytes=count, seconds=time.perf_counter() - began, cold=cold)
        except FlatoutError as error:
            return Failed(lease=order.lease, reason=str(error)[:2000])
        except Exception:
            return Failed(lease=order.lease, reason=f"a bug: {traceback.format_exc(limit=-3)}"[:2000])

    def preparer(self, stream: str) -> ImagePreparer | Failed:
        """Opened by the first order of a stream; an error is kept, and answers every order."""
        with self._opening:
            found = self._preparers.get(stream)
            if found is None:
                try:
                    found = open_preparer(self._specs[stream])
                except AnotherDataset as error:
                    found = Failed(lease=0, reason=str(error)[:2000], stream_is="another")
                except Exception as error:  # a path that is not here, credentials, a spec of another version
                    reason = f"the service cannot open the data: {type(error).__name__}: {error}"
                    found = Failed(lease=0, reason=reason[:2000], stream_is="unavailable")
                self._preparers[stream] = found
            return found


def make_batch(
    preparer: ImagePreparer, epoch: int, index: int, space: memoryview, key: bytes, sum_every: int = 1
) -> int:
    """Make a batch and write it as a bundle into `space`; its length. All producers use this."""
    arrays, meta = preparer.prepare(epoch, index, payload(space))
    return write_bundle(space, key, arrays, meta, sum_every)


class _Process:
    """Threads that carry out orders; the main thread receives them."""

    def __init__(self, wire: Wire, store: BatchStore, threads: int) -> None:
        self._wire = wire
        self._maker = Maker(store)
        self._threads = threads
        self._orders: queue.SimpleQueue[tuple[Produce, float]] = queue.SimpleQueue()
        self._active_workers = 0
        self._spare = -1
        self._sending = threading.Lock()
        self._answers: list[Message] = []  # held back, to be sent with the next one
        self._answers_of = ""  # their stream

    def run(self) -> None:
        self._grow(self._threads, 0)
        while True:
            for order in self._wire.receive_all():
                if isinstance(order, Produce):
                    self._maker.learn(order)
                    self._orders.put((order, time.perf_counter()))

    def _grow(self, workers: int, spare: int) -> None:
        """Start threads up to `workers`, and tell the coordinator how many orders to send."""
        if (workers, spare) == (self._active_workers, self._spare):
            return
        while self._active_workers < workers:
            self._active_workers += 1
            threading.Thread(target=self._work, name=f"flatout-producer {self._active_workers}", daemon=True).start()
        self._spare = spare
        with self._sending:
            self._wire.send(Joined(slots=workers + 1, spare=spare))  # one more than threads: none waits for an order

    def _work(self) -> None:
        free = 0.0
        while True:
            order, came = self._orders.get()
            with suppress(ServiceUnavailable):  # the main thread notices, and ends the process
                if order.stream != self._answers_of:
                    self._send_answers(order.stream)
                answer = self._maker.make(order, max(came, free))
                free = time.perf_counter()
                preparer = self._maker.preparer(order.stream)
                waits_for_data = not isinstance(preparer, Failed) and preparer.in_flight > 1
                small = not waits_for_data and isinstance(answer, Done) and answer.seconds < self._small_seconds()
                self._answer(answer, small)
                if not isinstance(preparer, Failed):
                    workers = max(self._active_workers, self._threads + preparer.in_flight - 1)
                    self._grow(workers, _ANSWERS_PER_SEND - 1 if small else 0)

    def _small_seconds(self) -> float:
        """Higher once batches count as small: else batches of about that time would switch with each one."""
        return 2 * SMALL_BATCH_SECONDS if self._spare > 0 else SMALL_BATCH_SECONDS

    def _answer(self, answer: Message, small: bool) -> None:
        """Answers of small batches are held back while there are further orders, and sent together: each message wakes
        the coordinator, on a core that could make batches."""
        with self._sending:
            self._answers.append(answer)
            waits = small and len(self._answers) < _ANSWERS_PER_SEND and not self._orders.empty()
        if not waits:
            self._send_answers(self._answers_of)

    def _send_answers(self, next_stream: str) -> None:
        with self._sending:
            answers, self._answers, self._answers_of = self._answers, [], next_stream
            if answers:
                self._wire.send(*answers)


def main() -> None:
    exit_with_parent()
    fd, threads = sys.argv[1:]
    wire = Wire(socket.socket(fileno=int(fd)))
    with suppress(ServiceUnavailable):
        given = wire.receive(None)
        assert isinstance(given, Equip)
        ca = None if given.tls_ca is None else Path(given.tls_ca)
        store = open_batch_store(StoreAccess(given.store, given.token, given.store_password, ca))
        _Process(wire, store, int(threads)).run()
    os._exit(0)  # threads may be in the middle of a batch that nobody waits for


if __name__ == "__main__":
    main()
