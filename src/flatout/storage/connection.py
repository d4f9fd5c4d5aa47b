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
from flatout.storage.in_flight import InFlightGate, InFlightLimit
from flatout.storage.retry import RequestOutcome, RetryPolicy


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
