"""Who prepares batches: the calling thread, threads, or (in process_pool.py) worker processes."""

import queue
import threading
import weakref
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flatout.data.batch import Prepared
from flatout.data.prepare import Recipe, prepare
from flatout.data.sample_cache import SampleCache
from flatout.errors import WorkerFailed

Key = tuple[int, int]  # epoch, index


class Pool(Protocol):
    """Prepares the batches it is asked for, in any order; each is waited for once."""

    def submit(self, key: Key) -> None: ...

    def wait(self, key: Key, deadline_seconds: float) -> Prepared: ...

    def forget(self) -> None:
        """Drop every batch that was submitted and not waited for."""
        ...

    def close(self) -> None: ...


class Buffers:
    """Image buffers that come back when the last tensor on them is gone: no page faults after the first batches."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        count = int(np.prod(shape))
        with self._lock:
            stack = self._free.get(count)
            flat = stack.pop() if stack else np.empty(count, np.uint8)
        # numpy lets a slice refer to the owner of the memory, past the array it was cut from: without the memoryview
        # between them, a slice would keep `flat` but not `lease`, and the buffer would come back while still in use
        lease = np.frombuffer(flat.data, np.uint8)
        weakref.finalize(lease, self._give_back, flat)
        return lease.reshape(shape)

    def _give_back(self, flat: NDArray[np.uint8]) -> None:
        with self._lock:
            stack = self._free.setdefault(flat.size, [])
            if len(stack) < 4:  # more were in use only while a consumer kept batches
                stack.append(flat)


class InlinePool:
    """Zero workers: a batch is prepared when it is waited for."""

    def __init__(self, recipe: Recipe, cache: SampleCache | None = None) -> None:
        self._recipe = recipe
        self._cache = cache
        self._buffers = Buffers()

    def submit(self, key: Key) -> None:
        pass

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        return prepare(self._recipe, *key, self._buffers.take(self._recipe.shape(key[0])), self._cache)

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadPool:
    """Threads that prepare whole batches. Idle threads sleep on the queue."""

    def __init__(self, recipe: Recipe, workers: int, cache: SampleCache | None = None) -> None:
        self._recipe = recipe
        self._cache = cache
        self._buffers = Buffers()
        self._queue: queue.SimpleQueue[tuple[Key, int] | None] = queue.SimpleQueue()
        self._done: dict[Key, Prepared | BaseException] = {}
        self._ready = threading.Condition()
        self._round = 0  # raised by forget(); work of an older round is dropped
        self._threads = [
            threading.Thread(target=self._work, name=f"flatout-loader-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: Key) -> None:
        self._queue.put((key, self._round))

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        with self._ready:
            if not self._ready.wait_for(lambda: key in self._done, deadline_seconds):
                raise WorkerFailed(
                    f"batch {key[1]} of epoch {key[0]} was not ready after {deadline_seconds:g} s; "
                    "is the store reachable? raise data.batch_deadline_seconds if it is only slow"
                )
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
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            key, number = task
            if number != self._round:
                continue
            outcome: Prepared | BaseException
            try:
                outcome = prepare(self._recipe, *key, self._buffers.take(self._recipe.shape(key[0])), self._cache)
            except BaseException as error:  # handed to the waiting thread: no failure in a worker is ever lost
                outcome = error
            with self._ready:
                if number == self._round:
                    self._done[key] = outcome
                    self._ready.notify_all()
