"""How many threads prepare batches: a first guess from the cores, corrected while running by what the queue and the
cores say. Batches are the same whatever the number."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import psutil

MOST_WORKERS = 16
_MANY = 1 << 30
_WINDOW_SECONDS, _WINDOW_BATCHES = 0.5, 4  # at the least, between two decisions


def workers_for(cores: int, device_kind: str, waits_per_work: float) -> int:
    """One beside a CPU that trains, else one for every core; more where workers mostly wait for slow files, since a
    waiting worker needs no core. At most 16."""
    busy = 1 if device_kind == "cpu" else max(1, cores)
    return min(MOST_WORKERS, math.ceil(busy * (1 + waits_per_work) if waits_per_work > 1 else busy))


@dataclass(frozen=True)
class Window:
    """What was seen since the last decision."""

    waited_share: float
    """Of the time in which the consumer waited for a batch."""
    least_ready: int
    """Batches that were ready when one was asked for, at the least."""
    busy_share: float
    """Of the workers' time in which they had something to do."""
    idle_cores: float
    """Of those this process may use."""


def wanted_workers(active: int, seen: Window, most: int, starved_with: int) -> int:
    """One more where batches are waited for while workers are busy and cores are not; one fewer where batches pile up
    and no core is left, but never down to `starved_with`, with which batches were waited for before."""
    core_while_waiting = seen.idle_cores > 0.7 * seen.waited_share
    if seen.waited_share > 0.1 and seen.busy_share > 0.8 and core_while_waiting and active < most:
        return active + 1
    piled_up = seen.waited_share < 0.01 and seen.least_ready > active
    return active - 1 if piled_up and seen.idle_cores < 0.1 and active - 1 > starved_with else active


class Resizable(Protocol):
    """A pool that can have more or fewer workers."""

    @property
    def active_workers(self) -> int: ...

    @property
    def busy_seconds(self) -> float: ...

    def resize(self, workers: int) -> None: ...


class WorkerControl:
    """Watches a pool batch by batch and resizes it. `prefetch_for` says how many batches so many workers prepare
    ahead."""

    def __init__(self, pool: Resizable, cores: int, most: int, prefetch_for: Callable[[int], int]) -> None:
        self._pool = pool
        self._cores = cores
        self._most = most
        self._prefetch_for = prefetch_for
        self._starved_with = 0
        self._batches, self._least_ready = 0, _MANY
        self._begin()

    @property
    def active_workers(self) -> int:
        return self._pool.active_workers

    @property
    def prefetch(self) -> int:
        """Batches to prepare ahead now."""
        return self._prefetch_for(self._pool.active_workers)

    def restart(self) -> None:
        """A new epoch: what was done since the last batch says nothing about it, and a cache may be full by now."""
        self._starved_with = 0
        self._begin()

    def after_batch(self, ready: int, waited_seconds: float) -> str | None:
        """Called for each batch; a sentence where the number of workers was changed."""
        self._waited += waited_seconds
        self._least_ready = min(self._least_ready, ready)
        self._batches += 1
        seconds = time.perf_counter() - self._started
        if seconds < _WINDOW_SECONDS or self._batches < _WINDOW_BATCHES:
            return None
        active, seen = self._pool.active_workers, self._seen(seconds)
        self._begin()
        wanted = wanted_workers(active, seen, self._most, self._starved_with)
        if wanted == active:
            return None
        self._starved_with = active if wanted > active else self._starved_with
        self._pool.resize(wanted)
        return (
            f"workers: {active} -> {wanted}; batches were waited for {100 * seen.waited_share:.0f} % of the time, "
            f"{seen.idle_cores:.1f} of {self._cores} cores were idle"
        )

    def _begin(self) -> None:
        self._started, self._cpu, self._idle = time.perf_counter(), time.process_time(), _idle_seconds()
        self._busy = self._pool.busy_seconds
        self._waited, self._least_ready, self._batches = 0.0, _MANY, 0

    def _seen(self, seconds: float) -> Window:
        own = (time.process_time() - self._cpu) / seconds
        idle = min((_idle_seconds() - self._idle) / seconds, self._cores - own)
        busy = (self._pool.busy_seconds - self._busy) / (seconds * max(1, self._pool.active_workers))
        return Window(self._waited / seconds, self._least_ready, busy, max(0.0, idle))


def _idle_seconds() -> float:
    """Of all cores of the machine, since it was started."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))
