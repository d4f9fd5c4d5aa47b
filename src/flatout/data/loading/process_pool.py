"""Worker processes that prepare batches into shared memory, and are replaced when they die.

Workers are started as `python -m flatout.data.loading.process_pool FD`, not by fork or by multiprocessing: no threads
or sockets are inherited, and a user's script needs no `if __name__ == "__main__"`. Each has one end of a socket pair;
its death is the end of that connection. Images travel through a mapped file in /dev/shm that is allocated before
use, because touching an unallocated page of a full tmpfs is a SIGBUS.
"""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait

import numpy as np
from numpy.typing import NDArray

from flatout.cache.shared_memory import memory_folder
from flatout.data.batch import Prepared
from flatout.data.loading.pinned_memory import PAGEABLE, HostMemory
from flatout.data.loading.pools import Buffers, Key, late
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.errors import FlatoutError, NoSpace, WorkerFailed
from flatout.machine.parents import child_environment, exit_with_parent
from flatout.units import format_bytes

MAX_DEATHS = 3  # of workers on the same sample or batch
_HEADER_BYTES = 4096  # holds the id of the sample being decoded
_NO_SAMPLE = (-1).to_bytes(8, sys.byteorder, signed=True)
_INTERPRETER_BYTES = 25 << 20
_SLOTS = 2  # finished batches a worker may hold while the trainer is busy with a step


class _Worker:
    """One process, its connection and its mapped buffer."""

    def __init__(self, recipe: BatchPlan, buffer_bytes: int) -> None:
        self.tasks: deque[tuple[Key, int]] = deque()
        self.received = 0
        # a file without a name: the mapping keeps it alive, and nothing is left behind after a kill -9
        with tempfile.TemporaryFile(dir=memory_folder(), buffering=0) as file:
            fd = file.fileno()
            _allocate(fd, _HEADER_BYTES + _SLOTS * buffer_bytes)
            self.memory = mmap.mmap(fd, _HEADER_BYTES + _SLOTS * buffer_bytes)
            self.memory[:8] = _NO_SAMPLE  # a worker that dies while starting must not be blamed on sample 0
            ours, theirs = socket.socketpair()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flatout.data.loading.process_pool", str(theirs.fileno()), str(fd)],
                pass_fds=(theirs.fileno(), fd),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **child_environment()},
                start_new_session=True,  # Ctrl-C is for the trainer, which then closes its workers
            )
            theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send(recipe)

    def current_sample(self) -> int:
        return int(np.frombuffer(self.memory, np.int64, 1)[0])

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()
        with suppress(BufferError):
            self.memory.close()


def worker_bytes(recipe: BatchPlan) -> int:
    """Memory of one worker: its interpreter and numpy, and the batches it may hold."""
    return _INTERPRETER_BYTES + _SLOTS * recipe.largest_bytes()


class ProcessPool:
    """Hands batches to the least busy worker, a few at a time, and again to another when a worker dies."""

    def __init__(self, recipe: BatchPlan, workers: int, memory: HostMemory = PAGEABLE) -> None:
        self._recipe = recipe
        self._buffer_bytes = recipe.largest_bytes()
        self._buffers = Buffers(memory)
        self._waiting: deque[tuple[Key, int]] = deque()
        self._done: dict[Key, Prepared | FlatoutError] = {}
        self._deaths: dict[Key | int, int] = {}
        self._suspects: set[Key] = set()  # batches that killed a worker: prepared sample by sample from then on
        self._round = 0
        self._workers = [_Worker(recipe, self._buffer_bytes) for _ in range(workers)]

    def submit(self, key: Key) -> None:
        self._waiting.append((key, self._round))
        self._dispatch()

    def ready(self) -> int:
        for worker in list(self._workers):
            if worker.connection.poll():
                self._receive(worker)
        self._dispatch()  # also what a dead worker left
        return len(self._done)

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        deadline = time.monotonic() + deadline_seconds
        while key not in self._done:
            left = deadline - time.monotonic()
            ready = wait([worker.connection for worker in self._workers], max(0.0, left))
            if not ready and left <= 0:
                raise late(key, deadline_seconds)
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                self._receive(worker)
            self._dispatch()
        outcome = self._done.pop(key)
        if isinstance(outcome, FlatoutError):
            raise outcome
        return outcome

    def forget(self) -> None:
        self._round += 1
        self._waiting.clear()
        self._done.clear()

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def _dispatch(self) -> None:
        while self._waiting:
            worker = min(self._workers, key=lambda each: len(each.tasks))
            if len(worker.tasks) > _SLOTS:
                return
            task = self._waiting.popleft()
            worker.tasks.append(task)
            careful = task[0] in self._suspects
            with suppress(OSError):  # a dead worker is noticed, and its tasks given away, in _receive
                worker.connection.send((task[0], careful))

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        key, number = worker.tasks.popleft()
        if isinstance(message, Prepared):  # copied out, so that the worker can go on in the same slot
            images = self._buffers.take(self._recipe.shape(key[0]))[: len(message.labels)]
            offset = _HEADER_BYTES + worker.received % _SLOTS * self._buffer_bytes
            images.reshape(-1)[:] = np.frombuffer(worker.memory, np.uint8, images.size, offset)
            message.images = images
            message.work = [each._replace(worker=f"worker {worker.process.pid}") for each in message.work]
        worker.received += 1
        with suppress(OSError):
            worker.connection.send("go")
        if number == self._round:
            self._done[key] = message

    def _replace(self, worker: _Worker) -> None:
        """Start another worker and give it the dead one's batches; a sample that kills three is banned."""
        sample, status = worker.current_sample(), worker.process.wait()
        blamed: Key | int = sample if sample >= 0 else worker.tasks[0][0] if worker.tasks else -1
        self._suspects.update(task[0] for task in worker.tasks)
        self._deaths[blamed] = self._deaths.get(blamed, 0) + 1
        if self._deaths[blamed] >= MAX_DEATHS:
            if not isinstance(blamed, int) or blamed < 0:
                raise WorkerFailed(
                    f"{MAX_DEATHS} loader workers in a row died (exit status {status}) before decoding; "
                    "is the machine out of memory? try fewer data.workers"
                )
            self._recipe = replace(self._recipe, banned=(*self._recipe.banned, blamed))
        self._waiting.extendleft(reversed([task for task in worker.tasks if task[1] == self._round]))
        self._workers.remove(worker)
        worker.stop()
        self._workers.append(_Worker(self._recipe, self._buffer_bytes))


def _allocate(fd: int, count: int) -> None:
    try:
        os.posix_fallocate(fd, 0, count)
    except OSError as error:
        raise NoSpace(
            f"no room for a loader buffer of {format_bytes(count)} in {memory_folder()}: "
            f"{error.strerror}; use fewer data.workers, a smaller data.batch_size, or data.worker_kind=thread"
        ) from None


def _serve(connection: Connection, memory: mmap.mmap) -> None:
    """The life of a worker: a recipe, then keys. A slot is written again only after the trainer said go for it."""
    recipe: BatchPlan = connection.recv()
    slot_bytes = (len(memory) - _HEADER_BYTES) // _SLOTS
    current = np.frombuffer(memory, np.int64, 1)
    current[0] = -1
    tasks: deque[tuple[Key, bool]] = deque()
    sent = free = _SLOTS

    def watch(sample_id: int) -> None:
        current[0] = sample_id

    while True:
        while not tasks or not free:
            if (message := connection.recv()) == "go":
                free += 1
            else:
                tasks.append(message)
        key, careful = tasks.popleft()
        shape, offset = recipe.shape(key[0]), _HEADER_BYTES + sent % _SLOTS * slot_bytes
        images = np.frombuffer(memory, np.uint8, int(np.prod(shape)), offset).reshape(shape)
        connection.send(_answer(recipe, key, images, watch if careful else None))
        sent, free = sent + 1, free - 1


def _answer(
    recipe: BatchPlan, key: Key, images: NDArray[np.uint8], watch: Callable[[int], None] | None
) -> Prepared | FlatoutError:
    before = recipe.split.reader.counters()
    try:
        prepared = prepare(recipe, *key, images, watch=watch)
        after = recipe.split.reader.counters()  # those of this process: the trainer cannot see them
        prepared.stages.store_requests = after.requests - before.requests
        prepared.stages.store_bytes = after.bytes - before.bytes
        prepared.images = images[:0]  # the pixels stay in the mapped buffer
        return prepared
    except FlatoutError as error:
        return error
    except Exception:
        return WorkerFailed(f"a loader worker failed; this is a bug: {traceback.format_exc(limit=-3)}")


def main() -> None:
    exit_with_parent()  # the end of the connection is not seen in the midst of a read that hangs
    connection = Connection(int(sys.argv[1]))
    fd = int(sys.argv[2])
    memory = mmap.mmap(fd, os.fstat(fd).st_size)
    os.close(fd)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(connection, memory)


if __name__ == "__main__":
    main()
