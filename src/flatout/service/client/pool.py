"""A job's side: a pool whose batches others make. The loader around it is the same as without a service.

Cache first, then ask, wait with a deadline, else make the batch here and write it back. When the service is gone or
of no use, a local pool takes over, and every so often the job tries to rejoin. Nothing a service does or fails to do
changes a byte of a batch.
"""

import itertools
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from flatout.cache.batch_store import BatchStore
from flatout.cache.bundle import SUM_EVERY, read_bundle
from flatout.data.batch import Prepared
from flatout.data.loading.loader import Loader
from flatout.data.loading.pinned_memory import PAGEABLE, HostMemory
from flatout.data.loading.pools import Buffers, Key
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.errors import BadBundle, DataError, FlatoutError, ServiceUnavailable
from flatout.service.client.decisions import (
    FIRST_WAIT_SECONDS,
    MOST_MISSES,
    Action,
    Asked,
    AskFor,
    Take,
    apart_seconds,
    mean_step,
    next_action,
)
from flatout.service.client.helper import Helper
from flatout.service.coordinator.policy import MAX_BATCHES_PER_ASK
from flatout.service.producers.producer import make_batch
from flatout.service.protocol.messages import (
    AnyMessage,
    Batches,
    Claim,
    Claimed,
    Done,
    Failed,
    Leave,
    Message,
    Next,
    Refused,
    Register,
    Registered,
    Spoilt,
)
from flatout.service.protocol.specs import ImagePreparer, assemble, batch_key, check_contents, check_samples

_ANSWER_SECONDS = 5.0  # beyond what the service may hold an answer back
_LEFT_WHEN_ASKING = 8  # one batch in so many of a handful: to open as many takes a while on a machine that is busy
_SMALL_BYTES = 1 << 16  # copied, so that who keeps labels does not keep the buffer
_WORTH_A_THREAD_SECONDS = 0.002  # of a job's step: what comes can be heard and opened meanwhile


with warnings.catch_warnings():  # nobody may write to a batch that others read: torch cannot know, and says so once
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"read-only", np.uint8))


class Line(Protocol):
    """A conversation with the service, whatever it goes over."""

    def send(self, message: Message) -> None: ...

    def begin(self, message: Message, deadline_seconds: float) -> Callable[[], AnyMessage]:
        """Ask now; what is returned waits for the answer, which is to be heard before anything else is asked."""
        ...

    def ask(self, message: Message, deadline_seconds: float) -> AnyMessage: ...

    def close(self) -> None: ...


@dataclass
class Use:
    """What sharing did for one job; in summary.json."""

    hits: int = 0  # batches that others made
    local: int = 0  # made here because the service did not have them in time
    alone: int = 0  # made by the local pool while there was no service
    written_back: int = 0
    asks: int = 0
    most_asks_per_batch: int = 0
    busy_answers: int = 0  # that came when no producer was free
    wait_seconds: float = 0.0
    bytes: int = 0
    spoilt: int = 0
    outages: int = 0
    rejoined: int = 0
    connected_seconds: float = 0.0
    share_seconds: float = 0.0  # of the coordinator's time, divided among its jobs
    share_byte_seconds: float = 0.0  # of what the cache held
    share_gb_seconds: float = 0.0  # of what functions took
    share_requests: float = 0.0
    service_made: int = 0  # batches, for all jobs while this one was there
    service_evicted_needed: int = 0  # thrown away before all who would read them had
    service_cold_starts: int = 0
    last_trouble: str | None = None


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    """A buffer, between the mapping and what is cut from it: when it goes, the last reader of this job is gone."""

    number: int
    released: deque[int]

    def __del__(self) -> None:
        self.released.append(self.number)


def lend(mapped: memoryview, number: int, released: deque[int]) -> memoryview:
    """The same memory; `released` gets the number when nothing that was cut from it is left."""
    lent = _Lent(len(mapped), np.uint8, mapped)
    lent.number, lent.released = number, released
    return lent.data


class Item(NamedTuple):
    """A batch that is ready."""

    position: int
    buffer: int


class _Opened(NamedTuple):
    """A batch that is ready, as arrays."""

    prepared: Prepared
    bytes: int


def _items(answer: Batches) -> Iterator[Item]:
    return map(Item, itertools.count(answer.position), answer.buffers)


_OpenedByPosition = dict[int, _Opened | Exception]
_Heard = tuple[AnyMessage, _OpenedByPosition]


@dataclass(frozen=True)
class Coming:
    """A question that is on its way; its answer, and of the batches in it those that cost nothing to open."""

    position: int
    answer: Callable[[], _Heard]


@dataclass(frozen=True)
class Terms:
    """What a job registers with."""

    register: Register
    connect: Callable[[bool], tuple[Line, BatchStore]]  # the argument: wait for a service to start?
    remember: Callable[[int, int], None]  # where position 0 is, for when the run is resumed


class SharedPool:
    """The Pool of a job that shares. `open_local` makes the pool that takes over when it must.

    Batches of others stay where they are mapped, which is not `memory`. Registered for a GPU, a mapping would have a
    second lifetime, to be ended before it is unmapped, and the service decides when. Unregistered, the driver takes a
    copy of its own before it returns, which costs the trainer what a copy to pinned memory would cost it here.
    """

    def __init__(
        self, recipe: BatchPlan, terms: Terms, open_local: Callable[[], Loader], memory: HostMemory = PAGEABLE
    ) -> None:
        self.use = Use()
        self.notes: list[str] = []
        self._recipe = recipe
        self._batches_per_epoch = recipe.batches_per_epoch
        self._terms = terms
        self._open_local = open_local
        self._buffers = Buffers(memory)  # for batches that are made here
        self._line: Line | None = None
        self._store: BatchStore | None = None
        self._ready: deque[Item] = deque()
        self._opened: _OpenedByPosition = {}  # of these
        self._handful = 0  # how many the last answer had
        self._coming: Coming | None = None
        self._helper: Helper[_Heard] | None = None
        self._released: deque[int] = deque()
        self._pending: deque[Key] = deque()
        self._local: Loader | None = None
        self._local_active = False
        self._failures = 0  # of the service, since it last was of use
        self._misses = 0
        self._rejoin_at = 0.0
        self._connected_at = 0.0
        self._step_seconds: float | None = None
        self._left_at: float | None = None
        self._pid = os.getpid()
        self._sharers = 1
        self._bill = Batches()  # this job's part of what the service took, since it joined

    # The pool

    def submit(self, key: Key) -> None:
        self._pending.append(key)
        if self._local_active and self._local is not None:
            self._local.pool.submit(self._shared_key(key))

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        self._measure_step()
        if self._pid != os.getpid():
            self._after_fork()
        if self._line is None and time.monotonic() >= self._rejoin_at:
            self._try_to_join(self._position(key))
        prepared = self._from_service(key) if self._line is not None else None
        if prepared is None:
            self._go_local()
            assert self._local is not None
            prepared = self._local.pool.wait(self._shared_key(key), deadline_seconds)
            self.use.alone += 1
        if self._pending and self._pending[0] == key:
            self._pending.popleft()
        self._left_at = time.perf_counter()
        return prepared

    def ready(self) -> int:
        if self._local_active and self._local is not None:
            return self._local.pool.ready()
        return len(self._ready)

    def forget(self) -> None:
        self._pending.clear()
        self._release_ready()
        if self._local is not None:
            self._local.pool.forget()

    def close(self) -> None:
        if self._line is not None:
            with suppress(ServiceUnavailable):
                self._line.send(Leave())
            self._hang_up()
        if self._local is not None:
            self._local.close()

    def join(self) -> None:
        """Once, before the first batch: waits for a service to start, and raises what must stop the job."""
        self._try_to_join(self._terms.register.position, wait=True)

    # Joining and parting

    def _try_to_join(self, position: int, wait: bool = False) -> None:
        register = self._terms.register.model_copy(update={"position": position})
        try:
            self._line, self._store = self._terms.connect(wait)
            answer = self._line.ask(register, _ANSWER_SECONDS)
            if isinstance(answer, Registered):
                self._joined(answer, wait)
                return
            self._refused(answer)
        except ServiceUnavailable as error:
            self._part(str(error))

    def _joined(self, answer: Registered, first: bool) -> None:
        self.use.rejoined += not first
        self._connected_at = time.monotonic()
        self._forget_ready()
        self._released = deque()  # another one: arrays of an earlier service are none of this one's buffers
        self._misses = 0
        fixed = self._terms.register.model_copy(
            update={"epoch": answer.epoch, "index": answer.index, "anywhere": False}
        )
        self._terms = replace(self._terms, register=fixed)
        self._terms.remember(answer.epoch, answer.index)
        if answer.note is not None:
            self.notes.append(f"shared: {answer.note}")
        if first:
            self.notes.append(f"shared: batches are shared by {answer.jobs} job(s)")
        if self._local_active and self._local is not None:
            self._local.pool.forget()
        self._local_active = False

    def _refused(self, answer: AnyMessage) -> None:
        reason = answer.reason if isinstance(answer, Refused) else f"it answered with a {type(answer).__name__}"
        if isinstance(answer, Refused) and answer.stop:
            self._hang_up()
            raise DataError(f"the service of shared batches and this job do not have the same data: {reason}")
        raise ServiceUnavailable(reason)

    def _part(self, reason: str) -> None:
        """Without the service for a while; longer each time it was of no use."""
        self.use.outages += self._connected_at > 0
        self.use.last_trouble = reason
        self._failures += 1
        self._rejoin_at = time.monotonic() + apart_seconds(self._failures)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._connected_at:
            self.use.connected_seconds += time.monotonic() - self._connected_at
            self._connected_at = 0.0
        for name, value in self._shares().items():
            setattr(self.use, name, value)
        self._bill = Batches()
        self._coming = None
        if self._helper is not None:
            self._helper.end()
            self._helper = None
        self._forget_ready()

    def _go_local(self) -> None:
        if self._local_active:
            return
        if self._local is None:
            self._local = self._open_local()
        self._local_active = True
        for key in self._pending:
            self._local.pool.submit(self._shared_key(key))

    def _after_fork(self) -> None:
        """The connection belongs to the parent: this process opens one of its own."""
        self._pid = os.getpid()
        self._line = self._local = self._coming = self._helper = None
        self._local_active = False
        self._connected_at = self._rejoin_at = 0.0
        self._forget_ready()
        self._buffers = Buffers()  # pageable: a forked process cannot use a GPU

    # One batch

    def _from_service(self, key: Key) -> Prepared | None:
        """None when the service has become of no use; then the local pool has the word."""
        began = time.perf_counter()
        try:
            position = self._position(key)
            item = self._take(position)
            if item is None:
                return self._made_here(key, position)
            return self._read(item, key)
        except ServiceUnavailable as error:
            self._part(str(error))
            return None
        finally:
            self.use.wait_seconds += time.perf_counter() - began

    def _take(self, position: int) -> Item | None:
        """The batch at this position among those that are here, or asked for; None when it must be made here."""
        while self._ready and self._ready[0].position < position:
            self._release(self._ready.popleft())
        began, times = time.monotonic(), 0
        action: Action = Take()
        if not self._ready or self._ready[0].position != position:
            action = next_action(Asked(0, 0.0), None)
        while isinstance(action, AskFor):
            answer = self._ask(position, action.wait_seconds)
            times += 1
            self.use.most_asks_per_batch = max(self.use.most_asks_per_batch, times)
            action = next_action(Asked(times, time.monotonic() - began), answer)
        if not isinstance(action, Take):
            self.use.last_trouble = f"batch at {position}: {action.reason}"
            return None
        item = self._ready.popleft()
        last, following = self._terms.register.last, position + 1 + len(self._ready)
        is_time = self._coming is None and len(self._ready) <= self._handful // _LEFT_WHEN_ASKING
        if is_time and (last is None or following < last):
            self._begin(following, FIRST_WAIT_SECONDS)  # the answer comes while the job works on those it has
        return item

    def _ask(self, position: int, wait_seconds: float) -> Batches:
        if self._coming is not None and self._coming.position != position:
            self._hear()
            self._release_ready()
        if self._coming is None:
            self._begin(position, wait_seconds)
        return self._hear()

    def _begin(self, position: int, wait_seconds: float) -> None:
        assert self._line is not None
        assert self._store is not None
        released = [self._released.popleft() for _ in range(min(len(self._released), 1000))]
        self.use.asks += 1
        question = Next(
            position=position, count=MAX_BATCHES_PER_ASK, wait_seconds=wait_seconds, released=released,
            step_seconds=self._step_seconds,
        )  # fmt: skip
        ask = partial(self._line.begin, question, wait_seconds + _ANSWER_SECONDS)
        open_all = partial(self._open_all, self._store, self._released)  # of this service, whatever comes meanwhile
        if self._step_seconds is None or self._step_seconds < _WORTH_A_THREAD_SECONDS:
            self._coming = Coming(position, partial(open_all, ask()))
            return
        if self._helper is None:
            self._helper = Helper("flatout-shared")
        self._coming = Coming(position, self._helper.start(lambda: open_all(ask())))

    def _open_all(self, store: BatchStore, released: deque[int], heard: Callable[[], AnyMessage]) -> _Heard:
        """One after the other: code that was just used is several times as fast."""
        answer = heard()
        if not isinstance(answer, Batches) or not store.is_mapped:
            return answer, {}
        return answer, {item.position: self._open(item, store, released) for item in _items(answer)}

    def _hear(self) -> Batches:
        assert self._coming is not None
        coming, self._coming = self._coming, None
        answer, opened = coming.answer()
        if not isinstance(answer, Batches) or (answer.buffers and answer.position != coming.position):
            self._refused(answer)
            raise AssertionError  # _refused always raises
        self._bill = answer
        self.use.busy_answers += answer.busy
        self._sharers = max(1, answer.jobs)
        self._ready.extend(_items(answer))
        self._handful = len(answer.buffers)
        self._opened |= opened
        return answer

    def _forget_ready(self) -> None:
        """There is nobody to release them to."""
        self._ready.clear()
        self._opened.clear()

    def _release_ready(self) -> None:
        while self._ready:
            self._release(self._ready.popleft())

    def _release(self, item: Item) -> None:
        """Unread. One that is open is released with its arrays."""
        if self._opened.pop(item.position, None) is None:
            self._released.append(item.buffer)

    def _read(self, item: Item, key: Key) -> Prepared:
        assert self._store is not None
        opened = self._opened.pop(item.position, None) or self._open(item, self._store, self._released)
        if isinstance(opened, Exception):
            return self._spoilt(item, key, opened)
        self._misses = self._failures = 0  # only now: a store that lies or hangs is of no use, whatever is promised
        self.use.hits += 1
        self.use.bytes += opened.bytes
        return opened.prepared

    def _open(self, item: Item, store: BatchStore, released: deque[int]) -> _Opened | Exception:
        epoch, index = self._shared_key(divmod(item.position, self._batches_per_epoch))
        name = batch_key(self._terms.register.stream, epoch, index)
        try:
            lease = lend(store.read(item.buffer, name, self._terms.register.batch_bytes), item.buffer, released)
            bundle = read_bundle(lease, name, verify=False)  # the coordinator summed it, or the store its seal
            arrays = {
                each: array.copy() if array.nbytes <= _SMALL_BYTES else array for each, array in bundle.arrays.items()
            }
            prepared = assemble(epoch, index, arrays, bundle.meta)
            wanted = self._recipe.ids(epoch, index)
            check_samples(prepared, wanted)
            check_contents(prepared, self._recipe.split, wanted)
            if not store.is_mapped:
                prepared.work.clear()  # by another machine's clock
        except (BadBundle, KeyError, TypeError, ValueError) as error:
            return error
        stages = prepared.stages  # what an object store was asked for is paid once, by all who read the batch
        stages.store_requests = round(stages.store_requests / self._sharers)
        stages.store_bytes = round(stages.store_bytes / self._sharers)
        return _Opened(prepared, bundle.bytes)

    def _spoilt(self, item: Item, key: Key, error: Exception) -> Prepared:
        """Never used; the service forgets it, and this job makes it."""
        assert self._line is not None
        self.use.spoilt += 1
        self.use.last_trouble = str(error)
        self._line.send(Spoilt(position=item.position, buffer=item.buffer))
        return self._made_here(key, item.position)

    def _made_here(self, key: Key, position: int) -> Prepared:
        """Make it, where others find it if the service likes; give up the service for a while after three in a row."""
        self._misses += 1
        if self._misses >= MOST_MISSES:
            raise ServiceUnavailable(f"{self._misses} batches in a row were not made in time: {self.use.last_trouble}")
        self.use.local += 1
        written = self._written_back(key, position)
        if written is not None:
            return written
        epoch, index = self._shared_key(key)
        return prepare(self._recipe, epoch, index, self._buffers.take(self._recipe.shape(epoch)))

    def _written_back(self, key: Key, position: int) -> Prepared | None:
        assert self._line is not None
        assert self._store is not None
        if self._coming is not None:
            self._hear()
        claimed = self._line.ask(Claim(position=position), _ANSWER_SECONDS)
        if not isinstance(claimed, Claimed) or claimed.lease is None or claimed.buffer is None:
            return None
        if claimed.bytes > self._terms.register.batch_bytes:
            raise ServiceUnavailable(f"the service offers a buffer of {claimed.bytes} bytes, larger than any batch")
        epoch, index = self._shared_key(key)
        began = time.perf_counter()
        try:
            space, name = self._store.space(claimed.buffer, claimed.bytes), self._batch_key(key)
            preparer = ImagePreparer(self._recipe, None, 1)
            count = make_batch(preparer, epoch, index, space, name, SUM_EVERY)
            self._store.commit(claimed.buffer, name, space, count)
        except FlatoutError as error:
            self._line.send(Failed(lease=claimed.lease, reason=str(error)[:2000]))
            return None
        bundle = read_bundle(space, name, verify=False)
        copies = {array: values.copy() for array, values in bundle.arrays.items()}  # others may get the buffer
        self._line.send(Done(lease=claimed.lease, bytes=count, seconds=time.perf_counter() - began))
        self.use.written_back += 1
        return assemble(epoch, index, copies, bundle.meta)

    # Which batch

    def _position(self, key: Key) -> int:
        return key[0] * self._batches_per_epoch + key[1]

    def _shared_key(self, key: Key) -> Key:
        """The batch that stands at this place of this job's order, which may begin where other jobs were."""
        register = self._terms.register
        return register.epoch + key[0], (register.index + key[1]) % self._batches_per_epoch

    def _batch_key(self, key: Key) -> bytes:
        return batch_key(self._terms.register.stream, *self._shared_key(key))

    def _measure_step(self) -> None:
        """What the job does between two batches: its own speed, whatever it waits for."""
        if self._left_at is not None:
            seconds = time.perf_counter() - self._left_at
            self._step_seconds = mean_step(self._step_seconds, seconds)

    def _shares(self) -> dict[str, float]:
        """Of all connections so far."""
        shares = ("share_seconds", "share_byte_seconds", "share_gb_seconds", "share_requests")
        names = {name: name for name in shares}
        names |= {f"service_{name}": name for name in ("made", "evicted_needed", "cold_starts")}
        return {name: getattr(self.use, name) + getattr(self._bill, of) for name, of in names.items()}

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        connected = self.use.connected_seconds
        if self._connected_at:
            connected += time.monotonic() - self._connected_at
        register = self._terms.register
        begins = [register.epoch, register.index]
        return {**asdict(self.use), **self._shares(), "connected_seconds": connected, "order_begins_at": begins}
