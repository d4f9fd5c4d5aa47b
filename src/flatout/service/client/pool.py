"""The pool of a job that shares batches. The loader around it is the same as without a service.

A batch comes from the store, is asked for, or (after a deadline) is made here and written back. When the service is
gone or of no use, a local pool takes over, and the job tries to rejoin after a growing pause. Whatever a service does
or fails to do, the bytes of a batch are the same.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from flatout.cache.batch_store import BatchStore
from flatout.cache.bundle import SUM_EVERY, read_bundle
from flatout.data.batch import Prepared
from flatout.data.loading.loader import Loader
from flatout.data.loading.pinned_memory import PAGEABLE, HostMemory
from flatout.data.loading.pools import Buffers, Key
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.errors import FlatoutError, ServiceUnavailable
from flatout.service.client.batches import BatchOpener, ReadyBatch, StreamOrder
from flatout.service.client.decisions import MOST_MISSES, mean_step
from flatout.service.client.fallback import LocalFallback
from flatout.service.client.requests import BatchRequests
from flatout.service.client.session import ANSWER_SECONDS, JoinSettings, ServiceConnection, ServiceSession
from flatout.service.client.stats import SharingStats
from flatout.service.producers.producer import make_batch
from flatout.service.protocol.messages import Claim, Claimed, Done, Failed, Spoilt
from flatout.service.protocol.specs import AnotherDataset, ImagePreparer, assemble


class SharedPool:
    """A `Pool` whose batches are made by the service, or by `open_local()` while there is none.

    Batches of the service stay in the store's mapped memory, which is not `memory` and not pinned: registered with a
    GPU, a mapping would have to be unregistered before the service unmaps it. From unregistered memory the driver takes
    a copy of its own before it returns, which costs the trainer as much as a copy to pinned memory would here.
    """

    def __init__(
        self, plan: BatchPlan, settings: JoinSettings, open_local: Callable[[], Loader], memory: HostMemory = PAGEABLE
    ) -> None:
        self.stats = SharingStats()
        self._plan = plan
        self._session = ServiceSession(settings, self.stats)
        self._order = self._session.order
        self._requests: BatchRequests | None = None  # of the open session
        self._fallback = LocalFallback(open_local, self._order)
        self._buffers = Buffers(memory)  # for batches that are made here and not written back
        self._misses = 0  # batches in a row that were made here
        self._step_seconds: float | None = None
        self._handed_over_at: float | None = None
        self._pid = os.getpid()

    @property
    def notes(self) -> list[str]:
        return self._session.notes

    def join(self) -> None:
        """Called once, before the first batch: waits for a service to start, and raises what must stop the job."""
        self._try_to_join(self._order.register.position, wait=True)

    def submit(self, key: Key) -> None:
        self._fallback.submit(key)

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        self._measure_step()
        if self._pid != os.getpid():
            self._after_fork()
        if not self._session.is_open and time.monotonic() >= self._session.rejoin_at:
            self._try_to_join(self._order.position(key), wait=False)
        prepared = self._from_service(self._order.position(key)) if self._session.is_open else None
        if prepared is None:
            prepared = self._fallback.wait(key, deadline_seconds)
            self.stats.alone += 1
        self._fallback.note_taken(key)
        self._handed_over_at = time.perf_counter()
        return prepared

    def ready(self) -> int:
        if self._fallback.is_active:
            return self._fallback.ready()
        return 0 if self._requests is None else len(self._requests)

    def forget(self) -> None:
        if self._requests is not None:
            self._requests.release_all()
        self._fallback.forget()

    def close(self) -> None:
        self._session.leave()
        self._drop_requests()
        self._fallback.close()

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        register = self._order.register
        return self.stats.summary(self._session.connected_seconds, [register.epoch, register.index])

    def _try_to_join(self, position: int, wait: bool) -> None:
        session = self._session
        if session.join(position, wait):
            assert session.connection is not None
            assert session.store is not None
            opener = BatchOpener(self._plan, self._order, session.store)
            self._requests = BatchRequests(session.connection, opener, self._order.register.last, self.stats)
            self._misses = 0
            self._fallback.stop()

    def _from_service(self, position: int) -> Prepared | None:
        """None when the service has failed: then the local pool makes the batch."""
        assert self._requests is not None
        began = time.perf_counter()
        try:
            item = self._requests.take(position, self._step_seconds)
            return self._make_here(position) if item is None else self._read(item)
        except ServiceUnavailable as error:
            self._back_off(str(error))
            return None
        except AnotherDataset:
            self._session.hang_up()
            self._drop_requests()
            raise
        finally:
            self.stats.wait_seconds += time.perf_counter() - began

    def _read(self, item: ReadyBatch) -> Prepared:
        assert self._requests is not None
        opened = self._requests.open(item)
        if isinstance(opened, Exception):
            return self._replace_spoilt(item, opened)
        self._misses = self._session.failures = 0  # only now: a store that lies or hangs is of no use
        self.stats.hits += 1
        self.stats.bytes += opened.bytes
        return opened.prepared

    def _replace_spoilt(self, item: ReadyBatch, error: Exception) -> Prepared:
        """A batch that cannot be used is reported to the service, which discards it, and made here."""
        assert self._session.connection is not None
        self.stats.spoilt += 1
        self.stats.last_trouble = str(error)
        self._session.connection.send(Spoilt(position=item.position, buffer=item.buffer))
        return self._make_here(item.position)

    def _make_here(self, position: int) -> Prepared:
        """Make a batch, in the store if the service wants it. MOST_MISSES in a row are a failure of the service."""
        self._misses += 1
        if self._misses >= MOST_MISSES:
            trouble = self.stats.last_trouble
            raise ServiceUnavailable(f"{self._misses} batches in a row were not made in time: {trouble}")
        self.stats.local += 1
        written = self._write_back(position)
        if written is not None:
            return written
        epoch, index = self._order.at(position)
        return prepare(self._plan, epoch, index, self._buffers.take(self._plan.shape(epoch)))

    def _write_back(self, position: int) -> Prepared | None:
        assert self._session.connection is not None
        assert self._session.store is not None
        assert self._requests is not None
        self._requests.receive_pending()  # its answer would be taken for the one to the claim
        written = make_and_write_back(self._plan, self._order, self._session.connection, self._session.store, position)
        self.stats.written_back += written is not None
        return written

    def _back_off(self, reason: str) -> None:
        self._session.back_off(reason)
        self._drop_requests()

    def _drop_requests(self) -> None:
        """After the session was closed: their thread may wait for an answer."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    def _after_fork(self) -> None:
        """The connection, threads and local pool belong to the parent: this process opens its own."""
        self._pid = os.getpid()
        self._session.after_fork()
        self._fallback.after_fork()
        self._requests = None
        self._buffers = Buffers()  # pageable: a forked process cannot use a GPU

    def _measure_step(self) -> None:
        """The time between two batches is the job's own, whatever it waits for in here."""
        if self._handed_over_at is not None:
            self._step_seconds = mean_step(self._step_seconds, time.perf_counter() - self._handed_over_at)


def make_and_write_back(
    plan: BatchPlan, order: StreamOrder, connection: ServiceConnection, store: BatchStore, position: int
) -> Prepared | None:
    """None where the service has no use for the batch, or it could not be written."""
    claimed = connection.ask(Claim(position=position), ANSWER_SECONDS)
    if not isinstance(claimed, Claimed) or claimed.lease is None or claimed.buffer is None:
        return None
    if claimed.bytes > order.register.batch_bytes:
        raise ServiceUnavailable(f"the service offers a buffer of {claimed.bytes} bytes, larger than any batch")
    key = order.at(position)
    name, began = order.name(key), time.perf_counter()
    try:
        space = store.space(claimed.buffer, claimed.bytes)
        count = make_batch(ImagePreparer(plan, None, 1), *key, space, name, SUM_EVERY)
        store.commit(claimed.buffer, name, space, count)
    except FlatoutError as error:
        connection.send(Failed(lease=claimed.lease, reason=str(error)[:2000]))
        return None
    bundle = read_bundle(space, name, verify=False)
    copies = {array: values.copy() for array, values in bundle.arrays.items()}  # after Done the buffer is others' too
    connection.send(Done(lease=claimed.lease, bytes=count, seconds=time.perf_counter() - began))
    return assemble(*key, copies, bundle.meta)
