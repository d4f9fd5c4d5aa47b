"""Successive halving as pure functions: when rungs end, who is better, who goes on.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (2016).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class JobOutcome:
    """What a configuration came to at the end of a rung; without `value` it failed, and `cause` says why."""

    configuration: int
    value: float | None
    cause: str | None = None


def rung_epochs(epochs: int, configurations: int, eta: int) -> tuple[int, ...]:
    """Epochs at which the field is cut, ascending; the last is the whole run. Each is about 1/eta of the next."""
    cuts = 0
    while keep(configurations, eta) < configurations:
        configurations, cuts = keep(configurations, eta), cuts + 1
    return tuple(sorted({max(1, math.ceil(epochs / eta**cut)) for cut in range(cuts + 1)}))


def keep(configurations: int, eta: int) -> int:
    """How many of them go on to the next rung."""
    return max(1, configurations // eta)


def ranked(outcomes: Sequence[JobOutcome], higher_is_better: bool) -> list[JobOutcome]:
    """Best first; equal values by the order of configurations; what has no finite value last."""

    def place(outcome: JobOutcome) -> tuple[bool, float, int]:
        value = outcome.value
        if value is None or not math.isfinite(value):
            return True, 0.0, outcome.configuration
        return False, -value if higher_is_better else value, outcome.configuration

    return sorted(outcomes, key=place)


def survivors(outcomes: Sequence[JobOutcome], eta: int, higher_is_better: bool) -> list[int]:
    """Configurations that go on, best first. One that failed never does, so that there may be none."""
    best = ranked(outcomes, higher_is_better)[: keep(len(outcomes), eta)]
    return [each.configuration for each in best if each.value is not None and math.isfinite(each.value)]
