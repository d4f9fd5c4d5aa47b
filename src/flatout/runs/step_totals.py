"""The speed of a run's steps, summed up as they come: the work of a summary does not grow with the run."""

import math
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.errors import BadFile
from flatout.runs.steps import parse_amount, parse_count
from flatout.runs.summary import speed
from flatout.runs.tables import read_columns
from flatout.untrusted import shortened

_SHORTEST_SECONDS, _LONGEST_SECONDS = 1e-6, 1e6
_BUCKET = math.log(1.01)  # at most 2,800 buckets; a quantile is within 0.5 % of the step time it stands for


@dataclass(frozen=True)
class Steps:
    """Steps that count, ascending: 24 bytes each, where a row of the table takes a thousand."""

    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    samples: "array[int]" = field(default_factory=lambda: array("q"))

    def drop_from(self, number: int) -> None:
        """Forget the step `number` and those after it."""
        place = bisect_left(self.numbers, number)
        for values in (self.numbers, self.seconds, self.samples):
            del values[place:]


def read_steps(path: Path) -> Steps:
    """Of steps.csv, row by row; what a later attempt did again is superseded, as in `effective_rows`."""
    steps, attempt = Steps(), None
    for row in read_columns(path, ("attempt", "step", "step_seconds", "samples")):
        number, seconds, samples = parse_count(row[1]), parse_amount(row[2]), parse_count(row[3])
        if number is None or seconds is None or samples is None:
            raise BadFile(f"cannot read {path}: a row says {shortened(row)}, expected numbers")
        if row[0] != attempt:
            attempt = row[0]
            steps.drop_from(number)
        steps.numbers.append(number)
        steps.seconds.append(seconds)
        steps.samples.append(samples)
    return steps


class StepTotals:
    """Sums and a histogram of step times in constant memory."""

    def __init__(self, steps: Steps) -> None:
        self._count = self._samples = 0
        self._seconds = 0.0
        self._buckets: Counter[int] = Counter()
        for seconds, samples in zip(steps.seconds, steps.samples, strict=True):
            self.add(seconds, samples)

    def add(self, seconds: float, samples: int) -> None:
        self._count += 1
        self._seconds += seconds
        self._samples += samples
        within = min(max(seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS)
        self._buckets[round(math.log(within) / _BUCKET)] += 1

    def throughput(self) -> dict[str, Any]:
        """As `summary.throughput`, with quantiles to within 0.5 %."""
        return speed(self._count, self._seconds, self._samples, self._quantile)

    def _quantile(self, share: float) -> float:
        place = share * (self._count - 1)
        low = self._at(int(place))
        return low + (self._at(math.ceil(place)) - low) * (place - int(place))

    def _at(self, rank: int) -> float:
        """The step time with `rank` shorter ones."""
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed > rank:
                return math.exp(bucket * _BUCKET)
        raise AssertionError(f"rank {rank} of {passed} steps")
