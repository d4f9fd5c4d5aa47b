"""Objects on S3, Google Cloud Storage or Azure: many small reads in flight, each verified, each with a deadline.

Threads around obstore's blocking calls, which release the GIL: measured at a third less CPU per small object than
asyncio takes.
"""

import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from flatout.errors import ObjectMissing, StorageError, StoreUnreachable, UserError
from flatout.storage.answers import StoreLocation, Trouble, explain
from flatout.storage.client import Address, Option, Timeouts, build_client, origin_of, parse_address, place_of
from flatout.storage.connection import Connection, ReadOptions
from flatout.storage.counters import StoreCounters
from flatout.storage.listing import first_trouble, list_entries
from flatout.storage.protocol import Entry, Range
from flatout.storage.reading import Read, read_range
from flatout.storage.retry import GiveUp, RequestHistory, RequestOutcome, RetryPolicy, next_attempt

_CHECK_SECONDS = 9.0
_CHECK_POLICY = RetryPolicy(deadline_seconds=5.0, throttle_seconds=5.0, max_delay_seconds=1.0)
_CHECK_TIMEOUTS = Timeouts(whole_seconds=4.0, stall_seconds=4.0, connect_seconds=3.0)


@dataclass(eq=False)
class ObjectStore:
    """Objects under `url`. Connects on first use, once per process; storage/protocol.py has the contract."""

    url: str
    options: Mapping[str, Option] = field(default_factory=dict, repr=False)  # may hold keys: never shown
    reading: ReadOptions = field(default_factory=ReadOptions)
    _connections: dict[int, Connection] = field(default_factory=dict, init=False, repr=False)
    """By process: a forked child finds its parent's, and opens its own."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}}

    def origin(self) -> str:
        return origin_of(self.url, self.options)

    def entries(self) -> Iterator[Entry]:
        return list_entries(self._connection(), self.origin())

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        connection = self._connection()
        started, abandoned = time.monotonic(), threading.Event()
        reads = [Read(wanted, started, abandoned) for wanted in ranges]
        futures = [connection.pool.submit(read_range, connection, read) for read in reads]
        try:
            answers = [_result(connection, *pair) for pair in zip(reads, futures, strict=True)]
        finally:
            abandoned.set()
            for future in futures:
                future.cancel()
        connection.book.add_failures(sum(isinstance(answer, StorageError) for answer in answers))
        return answers

    def local_path(self, name: str) -> str | None:
        return None

    def counters(self) -> StoreCounters:
        """Of this process, since it opened the store."""
        connection = self._connections.get(os.getpid())
        return connection.book.snapshot() if connection is not None else StoreCounters()

    def check(self) -> None:
        """Raise, in one line and within 10 s, if the store cannot be listed or holds nothing under the prefix."""
        check_store(parse_address(self.url), self.options, place_of(self.url, self.options))

    def close(self) -> None:
        """Let the threads end; a later read opens the store again."""
        connection = self._connections.pop(os.getpid(), None)
        if connection is not None:
            connection.pool.shutdown(wait=False, cancel_futures=True)

    def _connection(self) -> Connection:
        connection = self._connections.get(os.getpid())
        if connection is None:
            address, place = parse_address(self.url), place_of(self.url, self.options)
            timeouts = self.reading.timeouts()
            opened = Connection(lambda: build_client(address, self.options, timeouts), place, self.reading)
            connection = self._connections.setdefault(os.getpid(), opened)  # two threads may have opened one each
        return connection


def _result(connection: Connection, read: Read, future: "Future[bytes | StorageError]") -> bytes | StorageError:
    """Wait for one answer, but not while the store says nothing at all for longer than the deadline."""
    deadline_seconds = connection.options.deadline_seconds
    while True:
        give_up_at = max(read.call_started, connection.last_answer) + deadline_seconds
        try:
            return future.result(timeout=max(0.0, give_up_at - time.monotonic()))
        except CancelledError:
            return explain(
                Trouble(RequestOutcome.UNREACHABLE, "the store was closed"), connection.place, read.wanted.name
            )
        except TimeoutError:
            if time.monotonic() >= max(read.call_started, connection.last_answer) + deadline_seconds:
                trouble = Trouble(RequestOutcome.UNREACHABLE, connection.last_detail)
                return explain(trouble, connection.place, read.wanted.name, deadline_seconds)


def check_store(address: Address, options: Mapping[str, Option], place: StoreLocation) -> None:
    """Raise what is wrong: bucket, region, key, no credentials, endpoint, empty prefix. Returns if none is."""
    # In a thread of its own, because looking up a host name can hang beyond every timeout.
    pool = ThreadPoolExecutor(1, thread_name_prefix="flatout-check")
    try:
        error = pool.submit(_find_error, address, options, place).result(timeout=_CHECK_SECONDS)
    except TimeoutError:
        error = StoreUnreachable(
            f"{place.url}: no answer from {place.endpoint} within {_CHECK_SECONDS:.0f} s; "
            "check the endpoint and the network"
        )
    except StorageError as refused:  # no client can be built from these options
        error = refused
    finally:
        pool.shutdown(wait=False)
    if error is not None:
        if not isinstance(error, StoreUnreachable):  # the address or the credentials, which the user gave
            error.exit_code = UserError.exit_code
        raise error


def _find_error(address: Address, options: Mapping[str, Option], place: StoreLocation) -> StorageError | None:
    client = build_client(address, options, _CHECK_TIMEOUTS)
    started = time.monotonic()
    attempts = 0
    while (trouble := first_trouble(client)) is not None:
        attempts += 1
        elapsed_seconds = time.monotonic() - started
        asked = RequestHistory(attempts, elapsed_seconds, elapsed_seconds, attempts, refreshed=True)
        step = next_attempt(trouble.outcome, asked, _CHECK_POLICY, random.random)
        if isinstance(step, GiveUp):
            return _explain_check(trouble, place, elapsed_seconds)
        time.sleep(step.seconds)
    return None


def _explain_check(trouble: Trouble, place: StoreLocation, elapsed_seconds: float) -> StorageError:
    if trouble.outcome is RequestOutcome.MISSING:
        return ObjectMissing(
            f"{place.url} holds no objects ({trouble.detail}); check the prefix, or upload the dataset first"
        )
    return explain(trouble, place, asked_seconds=elapsed_seconds)
