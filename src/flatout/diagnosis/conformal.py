"""How wide intervals must be, by how earlier predictions turned out (split conformal prediction).

Each outcome is scored by how far off it was in units of the interval that the model alone gave. The next interval is
the model's, times the score that the stated share of outcomes stayed below: whatever the errors look like, it holds
that share of those to come, if they are like those before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.diagnosis.what_if import LEVEL

QUANTITIES = ("step", "run", "memory")
_STEP_SCORES = (
    "0.00 0.01 0.01 0.02 0.02 0.02 0.04 0.05 0.05 0.05 0.05 0.06 0.06 0.10 0.12 0.19 0.19 0.21 0.23 0.26 "
    "0.27 0.28 0.30 0.32 0.34 0.35 0.38 0.41 0.49 0.60 0.62 0.71 0.97 0.97 1.04 1.06 1.20 1.23 1.61 "
)
SHIPPED: Mapping[str, tuple[float, ...]] = {"step": tuple(map(float, _STEP_SCORES.split()))}
"""Of the 39 steps in benchmarks/results/2026-11-16-predictions.md, by the intervals of the model before this one. Of
whole runs that table has three, too few to say anything."""
_ENOUGH = 20  # outcomes of one's own: from then on those alone count
_LEAST = 4  # fewer say nothing of the stated share
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 5.0


@dataclass(frozen=True)
class Outcome:
    """A prediction beside what was measured; `bare_error` is half of the model's own interval, as a share."""

    quantity: str
    predicted: float
    measured: float
    bare_error: float

    @property
    def error(self) -> float:
        """Relative: predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def score(self) -> float:
        return abs(self.measured / self.predicted - 1) / max(self.bare_error, 1e-6)


@dataclass(frozen=True)
class Score:
    """One figure of a prediction beside the run that followed it."""

    made_in: str
    changes: Mapping[str, Any]
    run: str
    outcome: Outcome
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.outcome.measured <= self.high

    def to_dict(self) -> dict[str, Any]:
        given = {"made_in": self.made_in, "changes": dict(self.changes), "run": self.run}
        found = self.outcome
        figures = {"quantity": found.quantity, "predicted": found.predicted, "measured": found.measured}
        return {**given, **figures, "low": self.low, "high": self.high, "error": found.error, "inside": self.inside}


def bare_errors(prediction: Mapping[str, Any]) -> dict[str, float]:
    """Of a stored prediction. Older ones did not keep them apart from their intervals."""
    kept = prediction.get("bare_errors")
    known = kept if isinstance(kept, Mapping) else {}
    found = {}
    for name in QUANTITIES:
        interval = prediction.get(name)
        if isinstance(interval, Mapping) and interval.get("value"):
            shown = (interval["high"] - interval["low"]) / 2 / interval["value"]
            value = known.get(name)
            found[name] = float(value) if isinstance(value, int | float) and value > 0 else shown
    return found


def quantile(scores: Sequence[float], level: float = LEVEL) -> float:
    """The score that a share `level` of future outcomes stays below; the largest where there are too few to say."""
    ordered = sorted(scores)
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * level)) - 1]


def interval_factors(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """By quantity. Few outcomes of one's own count together with those that came with this version."""
    scores: dict[str, list[float]] = {}
    for each in outcomes:
        scores.setdefault(each.quantity, []).append(each.score)
    factors = {}
    for name in QUANTITIES:
        own = scores.get(name, [])
        enough = len(own) >= _ENOUGH
        pool = own if enough else [*own, *SHIPPED.get(name, ())]
        if len(pool) >= _LEAST:
            least = _LEAST_FACTOR if enough else 1.0  # others' outcomes may ask for more doubt, never for less
            factors[name] = min(_MOST_FACTOR, max(least, quantile(pool)))
    return factors
