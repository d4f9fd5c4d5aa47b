"""Who prepares batches: the calling thread, threads, or (in process_pool.py) worker processes."""

import math
import queue
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flatout.data.batch import Prepared
from flatout.data.loading.pinned_memory import PAGEABLE, HostMemory
from flatout.data.loading.prepare import BatchPlan, Fetched, assemble, fetch, prepare
from flatout.data.loading.sample_cache import SampleCache
from flatout.errors import WorkerFailed

Key = tuple[int, int]  # epoch, index


class Pool(Protocol):
    """Prepares the batches it is asked for, in any order; each is waited for once."""

    def submit(self, key: Key) -> None: ...

    def wait(self, key: Key, deadline_seconds: float) -> Prepared: ...

    def ready(self) -> int:
        """How many batches are prepared and not waited for yet."""
        ...

    def forget(self) -> None:
        """Drop every batch that was submitted and not waited for."""
        ...

    def close(self) -> None: ...


class Buffers:
    """Image buffers that come back when the last tensor on them is gone: no page faults after the first batches."""

    def __init__(self, memory: HostMemory = PAGEABLE) -> None:
        self._memory = memory
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        count = math.prod(shape)
        granted = self._memory.granted_bytes(count)
        try:
            flat = self._free[granted].pop()
        except LookupError:
            flat = self._memory.allocate(granted)
        # numpy lets a slice refer to the owner of the memory, past the array it was cut from: without the memoryview
        # between them, a slice would keep `flat` but not `lease`, and the buffer would come back while still in use
        lease = np.frombuffer(flat.data, np.uint8, count)
        number = id(flat)  # weakref.finalize would do, but threads that lend while the interpreter ends make it raise
        self._lent[number] = weakref.ref(lease, lambda _: self._give_back(number)), flat
        return lease.reshape(shape)

    def _give_back(self, number: int) -> None:
        """Without a lock: this may be called in the middle of anything, whenever Python collects garbage."""
        _, flat = self._lent.pop(number)
        stack = self._free.setdefault(flat.size, [])
        if len(stack) < 4:  # more were in use only while a consumer kept batches
            stack.append(flat)


class InlinePool:
    """Zero workers: a batch is prepared when it is waited for."""

    def __init__(self, recipe: BatchPlan, cache: SampleCache | None = None, memory: HostMemory = PAGEABLE) -> None:
        self._recipe = recipe
        self._cache = cache
        self._buffers = Buffers(memory)

    def submit(self, key: Key) -> None:
        pass

    def ready(self) -> int:
        return 0

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        return prepare(self._recipe, *key, self._buffers.take(self._recipe.shape(key[0])), self._cache)

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadPool:
    """Threads that prepare whole batches. Idle threads sleep on a queue; of more than are wanted the last ones sleep
    until they are.

    For remote data, `fetchers` more threads wait for the store, so that the others always have something to decode.
    """

    def __init__(
        self,
        recipe: BatchPlan,
        workers: int,
        cache: SampleCache | None = None,
        fetchers: int = 0,
        memory: HostMemory = PAGEABLE,
    ) -> None:
        self._recipe = recipe
        self._cache = cache
        self._buffers = Buffers(memory)
        self._to_fetch: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._to_assemble: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._done: dict[Key, Prepared | BaseException] = {}
        self._ready = threading.Condition()
        self._round = 0  # raised by forget(); work of an older round is dropped
        self._split = fetchers > 0
        self._threads: list[threading.Thread] = []
        self._workers = self._active = 0  # that were started; that are wanted
        self._resized = threading.Condition()
        self._busy_seconds: dict[int, float] = {}  # of each worker, which alone writes it
        for number in range(fetchers):
            self._start(threading.Thread(target=self._fetch, name=f"flatout-fetcher {number}", daemon=True))
        self.resize(workers)

    @property
    def active_workers(self) -> int:
        return self._active

    @property
    def busy_seconds(self) -> float:
        """That workers have spent on batches, together."""
        return sum(list(self._busy_seconds.values()))

    def resize(self, workers: int) -> None:
        """From now on so many prepare batches; what one has begun it finishes."""
        with self._resized:
            self._active = workers
            self._resized.notify_all()
        while self._workers < workers:
            number, self._workers = self._workers, self._workers + 1
            self._busy_seconds[number] = 0.0
            name = f"flatout-worker {number}"
            self._start(threading.Thread(target=self._assemble, args=(number,), name=name, daemon=True))

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def submit(self, key: Key) -> None:
        (self._to_fetch if self._split else self._to_assemble).put(_Task(key, self._round))

    def ready(self) -> int:
        return len(self._done)

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        with self._ready:
            if not self._ready.wait_for(lambda: key in self._done, deadline_seconds):
                raise late(key, deadline_seconds)
            outcome = self._done.pop(key)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def forget(self) -> None:
        with self._ready:
            self._round += 1
            self._done.clear()

    def close(self) -> None:
        self.forget()
        self.resize(self._workers)  # those that sleep must hear of it too
        for _ in self._threads:
            self._to_fetch.put(None)
            self._to_assemble.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _fetch(self) -> None:
        while (task := self._to_fetch.get()) is not None:
            if task.round == self._round:
                try:
                    task.fetched = fetch(self._recipe, *task.key, self._cache)
                    self._to_assemble.put(task)
                except BaseException as error:  # no failure in a worker is ever lost
                    self._finish(task, error)

    def _next(self, number: int) -> "_Task | None":
        with self._resized:
            self._resized.wait_for(lambda: number < self._active)
        return self._to_assemble.get()

    def _assemble(self, number: int) -> None:
        while (task := self._next(number)) is not None:
            if task.round == self._round:
                began = time.perf_counter()
                try:
                    fetched = task.fetched or fetch(self._recipe, *task.key, self._cache)
                    images = self._buffers.take(self._recipe.shape(task.key[0]))
                    prepared = assemble(self._recipe, fetched, images)
                    self._finish(task, prepared)
                    del images, fetched, prepared  # else this thread would keep the buffers until its next batch
                except BaseException as error:  # handed to the thread that waits
                    self._finish(task, error)
                self._busy_seconds[number] += time.perf_counter() - began

    def _finish(self, task: "_Task", outcome: Prepared | BaseException) -> None:
        with self._ready:
            if task.round == self._round:
                self._done[task.key] = outcome
                self._ready.notify_all()


@dataclass
class _Task:
    key: Key
    round: int
    fetched: Fetched | None = None


def late(key: Key, deadline_seconds: float) -> WorkerFailed:
    return WorkerFailed(
        f"batch {key[1]} of epoch {key[0]} was not ready after {deadline_seconds:g} s; "
        "is the store reachable? raise data.batch_deadline_seconds if it is only slow"
    )
