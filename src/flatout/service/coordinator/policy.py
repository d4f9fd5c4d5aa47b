"""Settings and formulas of the coordinator's decisions: pure functions of numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

SMALL_BATCH_SECONDS = 0.05
"""A batch made in less counts as small: its messages cost a noticeable part of that, so several are sent as one."""
SMALL_BATCH_FACTOR = 4
"""Limits on numbers of batches are this many times higher for small batches."""
BATCHES_PER_ANSWER = 8
"""Most batches in one answer to a job; SMALL_BATCH_FACTOR times as many small ones."""
MAX_BATCHES_PER_ASK = SMALL_BATCH_FACTOR * BATCHES_PER_ANSWER


@dataclass(frozen=True)
class Policy:
    """Limits of what the coordinator may do. Speeds of the machine are measured, not set."""

    capacity_bytes: int
    """Room for batches in the store."""
    window: int = 16
    """Most batches prepared ahead of one job; SMALL_BATCH_FACTOR times as many small ones."""
    lease_seconds: float = 30.0
    """Longest time for one batch; a producer that takes longer is taken to hang and is killed."""
    most_failures: int = 3
    """Failed attempts at one batch before jobs are told to make it themselves."""
    most_asks: int = 10
    """Asks of one job for one batch before it is told to make it itself."""
    eviction: Literal["reuse", "lru"] = "reuse"
    recycles: bool = True
    """A buffer without readers is written again (mapped memory); else it is removed and another made (Redis)."""
    usd_per_hour: float | None = None
    """Most that producers paid by the second may cost."""
    keep_alive_seconds: float | None = None
    """Renew the time to live of needed batches this often; None for a store that does not forget."""


def small_factor(make_seconds: float | None) -> int:
    return SMALL_BATCH_FACTOR if make_seconds is not None and make_seconds < SMALL_BATCH_SECONDS else 1


def lookahead(window: int, step_seconds: float | None, make_seconds: float | None, start_seconds: float) -> int:
    """Batches to prepare ahead of a job: what it consumes while one is made (cold start included), and one answer's
    worth more, since it takes several at once.

    The whole window where the step time says nothing: it is not measured yet, or the job is limited by its data (step
    time 0); and where batches are small, so that an answer's worth is ready while the job works on the one before.
    """
    factor = small_factor(make_seconds)
    if factor > 1 or step_seconds is None or make_seconds is None or step_seconds <= 0:
        return factor * window
    meanwhile = min(window, 2 * (make_seconds + start_seconds) / step_seconds)  # infinite for a step of no time
    return min(window, ceil(meanwhile) + BATCHES_PER_ANSWER + 1)


def max_batches_per_answer(capacity_bytes: int, batch_bytes: int, jobs: int, make_seconds: float | None) -> int:
    """At least 1. A job holds what it was given until it asks again, and all jobs together should hold at most a
    quarter of the store."""
    most = BATCHES_PER_ANSWER * small_factor(make_seconds)
    return max(1, min(most, capacity_bytes // (4 * batch_bytes * max(1, jobs))))


def reuse_score(etas_seconds: Iterable[float]) -> float:
    """Worth of keeping a batch, from the times until each job will read it: sooner and more is higher; none is 0."""
    return sum(1.0 / (1.0 + eta) for eta in etas_seconds)


class Allowance:
    """A cost cap as a token bucket: it fills at the hourly rate and holds a tenth of an hour's worth."""

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
        """The bucket may go below zero, since the cost of a batch is known only when it is made. Negative: a refund."""
        self._left -= usd
        self.spent_usd += usd
