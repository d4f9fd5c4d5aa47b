"""The limit on requests in flight, fed by a simulated store: no clock, no network."""

import heapq
import threading
from itertools import count

import pytest

from flatout.storage.connection import InFlightGate, InFlightLimit


def simulate(
    limit: InFlightLimit, requests: int, latency: float, per_second: float = 1e9, demand: int = 10**6
) -> float:
    """A closed loop: as many requests in flight as allowed; answers come after the latency, so many per second."""
    now, line_free_at, sent = 0.0, 0.0, 0
    flying: list[float] = []
    limit.resumed(now)
    for _ in range(requests):
        while len(flying) < min(limit.limit, demand):
            line_free_at = max(line_free_at, now) + 1 / per_second
            heapq.heappush(flying, max(now + latency, line_free_at))
            sent += 1
        now = heapq.heappop(flying)
        limit.completed(10_000, now, full=len(flying) + 1 >= limit.limit)
    return now


def test_grows_to_the_maximum_while_latency_is_the_limit() -> None:
    limit = InFlightLimit(maximum=64)
    simulate(limit, 300, latency=0.03)
    assert limit.limit == 64


def test_stays_near_what_the_store_can_serve() -> None:
    limit = InFlightLimit(maximum=256)
    simulate(limit, 20_000, latency=0.03, per_second=1000)  # 30 in flight saturate it
    assert 24 <= limit.limit <= 48


def test_does_not_grow_beyond_the_demand() -> None:
    limit = InFlightLimit(maximum=64)
    simulate(limit, 2000, latency=0.03, demand=10)
    assert limit.limit == 16


def test_halves_once_for_requests_of_one_burst() -> None:
    limit = InFlightLimit(maximum=64, limit=32)
    for _ in range(20):
        limit.pushed_back(started=1.0, now=2.0)
    assert limit.limit == 16
    limit.pushed_back(started=2.5, now=3.0)
    assert limit.limit == 8


def test_never_falls_below_the_minimum_and_recovers() -> None:
    limit = InFlightLimit(maximum=64)
    for second in range(100):
        limit.pushed_back(started=second, now=second)
    assert limit.limit == limit.minimum == 2
    simulate(limit, 4000, latency=0.03)
    assert limit.limit == 64


@pytest.mark.parametrize("maximum", [1, 2, 5, 16])
def test_a_small_maximum_is_kept(maximum: int) -> None:
    limit = InFlightLimit(maximum=maximum)
    simulate(limit, 1000, latency=0.03)
    limit.pushed_back(started=100.0, now=100.0)
    assert 1 <= limit.limit <= maximum


def test_pauses_between_calls_do_not_count() -> None:
    limit = InFlightLimit(maximum=64)
    now = 0.0
    for _ in range(60):  # calls of 64 objects, a long pause after each
        limit.resumed(now)
        for done in range(64):
            now += 0.03 / limit.limit
            limit.completed(10_000, now, full=64 - done > limit.limit)
        limit.idle(now)
        now += 100.0
    assert limit.limit >= 40


def test_the_gate_lets_no_more_in_than_the_limit() -> None:
    gate = InFlightGate(InFlightLimit(maximum=4, limit=4))
    inside, most, lock, ticks = 0, 0, threading.Lock(), count()

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            assert gate.enter(seconds=30)
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1
            gate.leave(started=float(next(ticks)), now=float(next(ticks)), byte_count=1, pushed_back=False)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 4
    assert gate.in_flight == 0


def test_a_closed_gate_says_so() -> None:
    gate = InFlightGate(InFlightLimit(maximum=1))
    assert gate.enter(seconds=0)
    assert not gate.enter(seconds=0)
    gate.leave(started=0.0, now=1.0, byte_count=None, pushed_back=True)
    assert gate.enter(seconds=0)
