"""What a store did so far: requests, retries, throttles, bytes, and how long requests took."""

import math
import threading
from dataclasses import dataclass, fields

_SHORTEST_SECONDS = 1e-4
_BUCKETS_PER_DOUBLING = 16
_BUCKETS = 352
"""0.1 ms to 400 s in steps of 4.4 %: quantiles to within 2.3 %, in bounded memory."""


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """A snapshot; those of several processes add up."""

    requests: int = 0
    """Every request sent, answered or not."""
    retries: int = 0
    throttles: int = 0
    """Answers 503 or 429."""
    failures: int = 0
    """Objects given up or not there."""
    bytes: int = 0
    request_seconds: float = 0.0
    """Summed over requests; they overlap, so this is more than the time that passed."""
    seconds_histogram: tuple[int, ...] = (0,) * _BUCKETS

    def seconds_at(self, share: float) -> float | None:
        """The request time that `share` of the requests stay below; None before the first request."""
        total = sum(self.seconds_histogram)
        below = 0
        for bucket, count in enumerate(self.seconds_histogram):
            below += count
            if total and below >= share * total:
                return float(_SHORTEST_SECONDS * 2.0 ** ((bucket + 0.5) / _BUCKETS_PER_DOUBLING))
        return None

    def __add__(self, other: "StoreCounters") -> "StoreCounters":
        summed = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name != "seconds_histogram"
        }
        pairs = zip(self.seconds_histogram, other.seconds_histogram, strict=True)
        return StoreCounters(**summed, seconds_histogram=tuple(mine + theirs for mine, theirs in pairs))


class CounterBook:
    """The counts of one process, kept by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums = {field.name: 0.0 for field in fields(StoreCounters) if field.name != "seconds_histogram"}
        self._histogram = [0] * _BUCKETS

    def add_request(self, seconds: float, byte_count: int, throttled: bool) -> None:
        bucket = int(_BUCKETS_PER_DOUBLING * math.log2(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS))
        with self._lock:
            self._sums["requests"] += 1
            self._sums["throttles"] += throttled
            self._sums["bytes"] += byte_count
            self._sums["request_seconds"] += seconds
            self._histogram[min(bucket, _BUCKETS - 1)] += 1

    def add_retry(self) -> None:
        with self._lock:
            self._sums["retries"] += 1

    def add_failures(self, count: int) -> None:
        with self._lock:
            self._sums["failures"] += count

    def snapshot(self) -> StoreCounters:
        with self._lock:
            whole = {name: int(value) for name, value in self._sums.items() if name != "request_seconds"}
            return StoreCounters(
                **whole, request_seconds=self._sums["request_seconds"], seconds_histogram=tuple(self._histogram)
            )
