"""The coordinator's judgement, as pure functions of numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

SMALL_SECONDS = 0.05
"""To make a batch whose handover is worth a thought: of messages about it, several go together."""
SMALL_FACTOR = 4
"""So many times as many small batches are worth as much: waking each other costs more than making them."""
HANDFUL = 8
"""Batches that a job takes with one ask, where they are ready; SMALL_FACTOR times as many small ones."""
MOST_AT_ONCE = SMALL_FACTOR * HANDFUL


@dataclass(frozen=True)
class Policy:
    """What the coordinator may do. Figures that depend on the machine are measured, not set."""

    capacity_bytes: int
    window: int = 16
    """Most batches prepared ahead of one job; SMALL_FACTOR times as many small ones."""
    lease_seconds: float = 30.0
    """Longest a producer may take; then it is taken for hung."""
    most_failures: int = 3
    """Of producers at one batch; then the jobs make it themselves."""
    most_asks: int = 10
    """Of one job for one batch."""
    eviction: Literal["reuse", "lru"] = "reuse"
    recycles: bool = True
    """A buffer is written again when nobody reads it any more; else it is removed and another made."""
    usd_per_hour: float | None = None
    """Most that producers paid by the second may cost."""
    keep_alive_seconds: float | None = None
    """Touch entries that are still needed this often, where their keeper forgets what is not asked for."""


def small_factor(make_seconds: float | None) -> int:
    return SMALL_FACTOR if make_seconds is not None and make_seconds < SMALL_SECONDS else 1


def lookahead(window: int, step_seconds: float | None, make_seconds: float | None, start_seconds: float) -> int:
    """Batches to prepare ahead of a job: what it consumes while one is made (cold start included), and a handful more,
    since it takes several at once.

    A job that is limited by its data never shows its own speed; it and one not measured yet get the whole window. So
    does every job whose batches are small: a handful in its hands, and the next one ready when it asks.
    """
    factor = small_factor(make_seconds)
    if factor > 1 or step_seconds is None or make_seconds is None or step_seconds <= 0:
        return factor * window
    return min(window, ceil(2 * (make_seconds + start_seconds) / step_seconds) + HANDFUL + 1)


def handful(capacity_bytes: int, batch_bytes: int, jobs: int, make_seconds: float | None) -> int:
    """Most batches one answer may hold: what a job has taken stays in the store until it asks again, and all jobs
    together should not keep more than a quarter of it."""
    most = HANDFUL * small_factor(make_seconds)
    return max(1, min(most, capacity_bytes // (4 * batch_bytes * max(1, jobs))))


def reuse_score(etas_seconds: Iterable[float]) -> float:
    """How soon and by how many jobs a batch will be needed; 0 for one that nobody needs."""
    return sum(1.0 / (1.0 + eta) for eta in etas_seconds)


class Allowance:
    """A cost cap as a bucket that fills at so many dollars an hour and holds a tenth of an hour's worth."""

    def __init__(self, usd_per_hour: float | None) -> None:
        self._per_second = None if usd_per_hour is None else usd_per_hour / 3600
        self._most = 0.0 if usd_per_hour is None else usd_per_hour / 10
        self._left = self._most
        self._at: float | None = None
        self.spent_usd = 0.0

    def allows(self, now: float) -> bool:
        if self._per_second is None:
            return True
        if self._at is not None:
            self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        return self._left > 0

    def spend(self, usd: float) -> None:
        """May go below zero: what a producer will cost is known when it is done."""
        self._left -= usd
        self.spent_usd += usd
