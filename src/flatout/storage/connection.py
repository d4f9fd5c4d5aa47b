"""What one process holds of an object store: a client, threads, the limit on requests in flight, and counts."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flatout.storage.answers import StoreLocation, Trouble
from flatout.storage.client import Timeouts
from flatout.storage.counters import CounterBook
from flatout.storage.retry import RequestOutcome, RetryPolicy

_REQUEST_BYTES = 64 * 1024
"""What one request counts for besides its bytes, so that one figure serves tiny objects and large ranges."""
_WORTHWHILE = 1.03


@dataclass(slots=True)
class InFlightLimit:
    """Decides only; the caller passes the clock and holds the lock. It doubles until that first does not pay, then
    increases by steps; it halves when the store pushes back."""

    maximum: int
    limit: int = 16
    minimum: int = 2
    step: int = 8
    hold_windows: int = 16
    """Most windows to wait after increases that did not pay, before trying again: 2 after the first (one window is
    noisy), twice as many after each further one."""
    _rate: float = 0.0
    """Work per second at the limit before the last increase; 0 is unknown."""
    _lower_limit: int = 0
    """What to return to if the last increase does not pay; 0 if it has been judged."""
    _held: int = 0
    _hold: int = 1
    _doubles: bool = True
    _cut_at: float = float("-inf")
    _busy_since: float = 0.0
    _window_seconds: float = 0.0
    """Of the window so far, up to `_busy_since`; time with nothing in flight does not count."""
    _window_count: int = 0
    _window_full: int = 0
    _window_work: float = 0.0

    def __post_init__(self) -> None:
        self.minimum = min(self.minimum, self.maximum)
        self.limit = max(self.minimum, min(self.limit, self.maximum))

    def resumed(self, now: float) -> None:
        """A request was sent, and it is the only one."""
        self._busy_since = now

    def idle(self, now: float) -> None:
        """The last request in flight has ended."""
        self._window_seconds += now - self._busy_since
        self._busy_since = now

    def completed(self, byte_count: int, now: float, full: bool) -> None:
        """One good answer; `full` says the limit, not the demand, bounded the requests in flight."""
        self._window_count += 1
        self._window_full += full
        self._window_work += byte_count + _REQUEST_BYTES
        seconds = self._window_seconds + now - self._busy_since
        if self._window_count >= 2 * self.limit and seconds > 0:
            self._judge(self._window_work / seconds)
            self._restart_window(now)

    def pushed_back(self, started: float, now: float) -> None:
        """A 503 or a timeout. Requests sent before the last cut say nothing about the limit it set."""
        if started < self._cut_at:
            return
        self.limit = max(self.minimum, self.limit // 2)
        self._cut_at, self._rate, self._lower_limit, self._held, self._doubles = now, 0.0, 0, 0, False
        self._restart_window(now)

    def _restart_window(self, now: float) -> None:
        self._busy_since, self._window_seconds = now, 0.0
        self._window_count, self._window_full, self._window_work = 0, 0, 0.0

    def _judge(self, rate: float) -> None:
        """`rate` is what the present limit gave. An increase that did not pay is undone, and tried again later."""
        if 4 * self._window_full < self._window_count:
            return  # demand is below the limit; a higher limit would be an untested one
        if self._lower_limit and rate <= _WORTHWHILE * self._rate:
            self.limit, self._lower_limit, self._held, self._doubles = self._lower_limit, 0, 0, False
            self._hold = min(2 * self._hold, self.hold_windows)
            return
        first_or_paid = self._rate == 0.0 or self._lower_limit > 0
        self._hold = 1 if self._lower_limit else self._hold
        self._rate = rate if first_or_paid else (self._rate + rate) / 2  # conditions drift, one window is noisy
        self._held += 1
        self._lower_limit = 0
        if self.limit < self.maximum and (first_or_paid or self._held >= self._hold):
            self._lower_limit, self._held = self.limit, 0
            self.limit = min(self.limit + (self.limit if self._doubles else self.step), self.maximum)


class InFlightGate:
    """Lets as many threads of this process send as the limit says."""

    def __init__(self, limit: InFlightLimit) -> None:
        self.limit = limit
        self.in_flight = 0
        self._changed = threading.Condition(threading.Lock())

    def enter(self, seconds: float) -> bool:
        """False if there was no room within `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.in_flight < self.limit.limit, timeout=seconds):
                return False
            if self.in_flight == 0:
                self.limit.resumed(time.monotonic())
            self.in_flight += 1
        return True

    def leave(self, started: float, now: float, byte_count: int | None, pushed_back: bool) -> None:
        """`byte_count` is None where no whole answer came."""
        with self._changed:
            if pushed_back:
                self.limit.pushed_back(started, now)
            elif byte_count is not None:
                self.limit.completed(byte_count, now, full=self.in_flight >= self.limit.limit)
            self.in_flight -= 1
            if self.in_flight == 0:
                self.limit.idle(now)
            room = self.limit.limit - self.in_flight
            if room > 0:
                self._changed.notify(room)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Limits of reading: requests in flight, deadlines, what is verified."""

    max_in_flight: int = 64
    """Requests in flight at most, over all threads of a process."""
    deadline_seconds: float = 60.0
    """Without a usable answer, an object is given up; without any sign of life, the whole call."""
    throttle_seconds: float = 180.0
    """Patience with a store that answers 503: it is alive, and a minute of SlowDown must not end a run."""
    stall_seconds: float = 10.0
    """An answer that brings no byte for so long is asked for again."""
    verify_etag: bool = True
    """Compare whole objects with an ETag that looks like an MD5; costs about 1.6 ms of CPU per MB."""
    seed: int | None = None
    """Of the back-off's jitter; None draws from the system."""

    def policy(self) -> RetryPolicy:
        return RetryPolicy(self.deadline_seconds, self.throttle_seconds)

    def timeouts(self) -> Timeouts:
        stall_seconds = min(self.stall_seconds, self.deadline_seconds)
        # silence ends a request after one deadline; a slow link that keeps sending has ten of them
        return Timeouts(whole_seconds=10 * self.deadline_seconds, stall_seconds=stall_seconds)


class Connection:
    """Belongs to one process: never crosses a fork or a pickle. Used by many threads."""

    def __init__(self, build: Callable[[], Any], place: StoreLocation, options: ReadOptions) -> None:
        self.build = build
        self.client = build()
        self.place = place
        self.options = options
        self.policy = options.policy()
        self.pool = ThreadPoolExecutor(options.max_in_flight, thread_name_prefix="flatout-read")
        self.gate = InFlightGate(InFlightLimit(options.max_in_flight))
        self.book = CounterBook()
        self.uniform = random.Random(options.seed).random
        self.last_answer = self.last_success = float("-inf")
        self.last_detail = "no answer yet"
        self.prefer_whole = False
        """The server answered a range from 0 without ranging: ask for objects, and see whether that was the range."""
        self.etag_is_md5 = options.verify_etag
        self.etag_matches = 0
        self._refreshing = threading.Lock()

    def silent_seconds(self, since: float) -> float:
        """How long nothing was read, counted from `since` at the earliest."""
        return time.monotonic() - max(since, self.last_success)

    def refresh(self, used_client: Any) -> None:
        """Read the credentials again, unless another thread did so since `used_client` was in use."""
        with self._refreshing:
            if self.client is used_client:
                self.client = self.build()

    def object_bytes(self, client: Any, name: str) -> int:
        """Ask for an object's size only; raises what obstore raises."""
        started = time.monotonic()
        try:
            size: int = client.head(name)["size"]
            return size
        finally:
            self.book.add_request(time.monotonic() - started, 0, throttled=False)

    def note(self, trouble: Trouble | None, seconds: float, byte_count: int) -> None:
        """Keep what one finished request says about the store."""
        now = time.monotonic()
        throttled = trouble is not None and trouble.outcome is RequestOutcome.THROTTLED
        self.book.add_request(seconds, byte_count, throttled)
        if trouble is None:
            self.last_success = now
        else:
            self.last_detail = trouble.detail
        if trouble is None or trouble.outcome is not RequestOutcome.UNREACHABLE:
            self.last_answer = now
