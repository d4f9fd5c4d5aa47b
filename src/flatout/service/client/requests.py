"""Asking for batches: one request at a time, sent before the batches of the one before are used up."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from flatout.service.client.batches import BatchOpener, OpenedBatch, ReadyBatch, ready_batches
from flatout.service.client.decisions import FIRST_WAIT_SECONDS, Action, AskFor, AskHistory, Take, next_action
from flatout.service.client.session import ANSWER_SECONDS, ServiceConnection, refusal
from flatout.service.client.stats import SharingStats
from flatout.service.coordinator.policy import MAX_BATCHES_PER_ASK
from flatout.service.protocol.messages import AnyMessage, Batches, Next

Result = TypeVar("Result")
_ASK_AT_FRACTION = 8  # ask when 1/8 of an answer is left: opening the next takes a while on a busy machine
_RELEASED_PER_ASK = 1000
_WORTH_A_THREAD_SECONDS = 0.002  # steps at least this long leave time to receive and open an answer meanwhile
_END_SECONDS = 1.0  # for a thread that is told to end

_OpenedByPosition = dict[int, OpenedBatch | Exception]
_Received = tuple[AnyMessage, _OpenedByPosition]


class SerialThread(Generic[Result]):
    """Functions given to it must not use torch: a daemon thread inside torch at interpreter exit aborts the process.

    Unlike ThreadPoolExecutor it is a daemon, and keeps no reference to a result while it waits for the next function.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Result], Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """A function that waits for the result, and raises what `work` raised."""
        result: Future[Result] = Future()
        self._work.put((work, result))
        return result.result

    def close(self) -> None:
        """Waits a moment. Close first what the running function may be waiting for, such as a connection."""
        self._work.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            _carry_out(*task)
            del task  # else it would keep the result until the next function


def _carry_out(work: Callable[[], Result], result: Future[Result]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # raised where it is waited for
        result.set_exception(error)


@dataclass(frozen=True)
class PendingRequest:
    """A `Next` that is on its way. `answer` waits for it, and for the batches in it that cost nothing to open."""

    position: int
    answer: Callable[[], _Received]


class BatchRequests:
    """The requests of one connection, and the batches that were received and not used yet."""

    def __init__(
        self, connection: ServiceConnection, opener: BatchOpener, last: int | None, stats: SharingStats
    ) -> None:
        self.opener = opener
        self._connection = connection
        self._last = last  # position before which the job stops
        self._stats = stats
        self._ready: deque[ReadyBatch] = deque()
        self._opened: _OpenedByPosition = {}  # of those in `_ready`
        self._answer_size = 0  # batches in the last answer
        self._pending: PendingRequest | None = None
        self._thread: SerialThread[_Received] | None = None

    def __len__(self) -> int:
        """Batches received and not used yet."""
        return len(self._ready)

    def take(self, position: int, step_seconds: float | None) -> ReadyBatch | None:
        """The batch at this position, asked for if it is not here; None when it must be made here."""
        while self._ready and self._ready[0].position < position:
            self._release(self._ready.popleft())
        began, times = time.monotonic(), 0
        action: Action = Take()
        if not self._ready or self._ready[0].position != position:
            action = next_action(AskHistory(0, 0.0), None)
        while isinstance(action, AskFor):
            answer = self._ask(position, action.wait_seconds, step_seconds)
            times += 1
            self._stats.most_asks_per_batch = max(self._stats.most_asks_per_batch, times)
            action = next_action(AskHistory(times, time.monotonic() - began), answer)
        if not isinstance(action, Take):
            self._stats.last_trouble = f"batch at {position}: {action.reason}"
            return None
        item = self._ready.popleft()
        self._ask_ahead(position + 1 + len(self._ready), step_seconds)
        return item

    def open(self, item: ReadyBatch) -> OpenedBatch | Exception:
        return self._opened.pop(item.position, None) or self.opener.open(item)

    def receive_pending(self) -> None:
        """Anything else may be asked only after this."""
        if self._pending is not None:
            self._receive_answer()

    def release_all(self) -> None:
        """Give back what was received and will not be used."""
        while self._ready:
            self._release(self._ready.popleft())

    def close(self) -> None:
        """After the connection was closed: the thread may be waiting for its answer."""
        self._pending = None
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        self._ready.clear()
        self._opened.clear()

    def _ask_ahead(self, position: int, step_seconds: float | None) -> None:
        """Ask for what follows before it is needed; the answer comes while the job uses what it has."""
        is_time = self._pending is None and len(self._ready) <= self._answer_size // _ASK_AT_FRACTION
        if is_time and (self._last is None or position < self._last):
            self._begin(position, FIRST_WAIT_SECONDS, step_seconds)

    def _ask(self, position: int, wait_seconds: float, step_seconds: float | None) -> Batches:
        if self._pending is not None and self._pending.position != position:
            self._receive_answer()
            self.release_all()
        if self._pending is None:
            self._begin(position, wait_seconds, step_seconds)
        return self._receive_answer()

    def _begin(self, position: int, wait_seconds: float, step_seconds: float | None) -> None:
        released = self.opener.released
        self._stats.asks += 1
        question = Next(
            position=position,
            count=MAX_BATCHES_PER_ASK,
            wait_seconds=wait_seconds,
            released=[released.popleft() for _ in range(min(len(released), _RELEASED_PER_ASK))],
            step_seconds=step_seconds,
        )
        send = partial(self._connection.begin, question, wait_seconds + ANSWER_SECONDS)
        if step_seconds is None or step_seconds < _WORTH_A_THREAD_SECONDS:
            self._pending = PendingRequest(position, partial(_receive, self.opener, send()))
            return
        if self._thread is None:
            self._thread = SerialThread("flatout-shared")
        self._pending = PendingRequest(position, self._thread.submit(lambda: _receive(self.opener, send())))

    def _receive_answer(self) -> Batches:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        answer, opened = pending.answer()
        if not isinstance(answer, Batches) or (answer.buffers and answer.position != pending.position):
            raise refusal(answer)
        self._stats.bill = answer
        self._stats.busy_answers += answer.busy
        self.opener.sharers = max(1, answer.jobs)
        self._ready.extend(ready_batches(answer))
        self._answer_size = len(answer.buffers)
        self._opened |= opened
        return answer

    def _release(self, item: ReadyBatch) -> None:
        """Unread. A batch that is open releases its buffer when its arrays are deleted."""
        if self._opened.pop(item.position, None) is None:
            self.opener.released.append(item.buffer)


def _receive(opener: BatchOpener, wait: Callable[[], AnyMessage]) -> _Received:
    """The answer, with all of its batches opened at once where that costs nothing: in a row each is several times as
    fast as alone, since the code is in the processor's caches."""
    answer = wait()
    if not isinstance(answer, Batches) or not opener.is_free:
        return answer, {}
    return answer, {item.position: opener.open(item) for item in ready_batches(answer)}
