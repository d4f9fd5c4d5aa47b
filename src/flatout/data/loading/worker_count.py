"""How many threads prepare batches, corrected while running by what the queue and the cores say. Batches are the same
whatever the number."""

import time
from collections.abc import Callable
from typing import Protocol

import psutil

from flatout.decisions.loading import Window, adapt_workers

_MANY = 1 << 30
_WINDOW_SECONDS, _WINDOW_BATCHES = 0.5, 4  # at the least, between two decisions


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
        wanted = adapt_workers(active, seen, self._most, self._starved_with)
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
