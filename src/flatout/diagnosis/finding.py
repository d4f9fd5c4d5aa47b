"""One diagnosed cause: what was seen, what to change, what that buys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals

CAUSES = (
    "compute",
    "data-workers",
    "data-decode",
    "data-augment",
    "data-fetch",
    "copy",
    "network",
    "straggler",
    "memory",
    "checkpoint",
    "validation",
    "startup",
    "epoch-start",
    "host",
    "labels",
    "diverged",
    "learning",
    "unexplained",
)


@dataclass(frozen=True)
class Fix:
    """What to do; `changes` are keys of the recipe, where that is all it takes."""

    text: str
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One cause, or one piece of advice."""

    id: str
    cause: str | None
    """One of CAUSES; None for advice that explains no time."""
    title: str
    """One sentence with figures: the verdict, if this is what holds the run back most."""
    evidence: tuple[str, ...]
    fix: Fix
    gain: Interval | None = None
    """How many times faster the whole run gets; None where the gain is not time."""
    saved_seconds: float = 0.0
    usd: float | None = None
    urgent: bool = False
    """The run's result cannot be trusted, or the run will not last; comes before anything about its speed."""
    saved: Interval | None = None
    """`saved_seconds` with its bounds."""
    cost_seconds: float = 0.0
    """What the cause takes of the run: what would be saved if it were gone, where the fix saves a part of that."""

    def to_dict(self) -> dict[str, Any]:
        gain = None if self.gain is None else {"factor": self.gain.value, "low": self.gain.low, "high": self.gain.high}
        kept = {"id": self.id, "cause": self.cause, "title": self.title, "evidence": list(self.evidence)}
        return {**kept, "fix": asdict(self.fix), "gain": gain, "saved_seconds": self.saved_seconds, "usd": self.usd}


_TWO_RUNS_DIFFER = 0.03  # two equal runs never take the same time: no gain is promised closer


def run_gain(signals: Signals, saved: Interval) -> Interval:
    """Seconds saved of the whole run as a factor on its speed."""
    wall = signals.time.wall_seconds

    def factor(seconds: float) -> float:
        return wall / max(wall - seconds, 0.02 * wall) if wall > 1e-9 else 1.0

    low, high = factor(max(0.0, saved.low)), factor(saved.high)
    return Interval(factor(saved.value), low / (1 + _TWO_RUNS_DIFFER), high * (1 + _TWO_RUNS_DIFFER))


def saving(
    signals: Signals,
    id: str,
    cause: str | None,
    title: str,
    evidence: tuple[str, ...],
    fix: Fix,
    saved: Interval,
    cost_seconds: float | None = None,
) -> Finding:
    """A finding about time; its dollars are those of the saved seconds. `cost_seconds` where its fix saves less."""
    usd = None if signals.cost.usd_per_hour is None else saved.value / 3600 * signals.cost.usd_per_hour
    cost = saved.value if cost_seconds is None else cost_seconds
    gain = run_gain(signals, saved)
    return Finding(id, cause, title, evidence, fix, gain, saved.value, usd, saved=saved, cost_seconds=cost)


def faster_steps(signals: Signals, new_step_seconds: float, error: float = 0.15) -> Interval:
    """Seconds of the run saved if every warm step took `new_step_seconds`, give or take, and others as much less."""
    steps = signals.step.alike

    def saved(seconds: float) -> float:
        return max(0.0, (signals.step.seconds - seconds) * steps)

    return Interval(
        saved(new_step_seconds), saved(new_step_seconds * (1 + error)), saved(new_step_seconds * (1 - error))
    )


def percent(share: float) -> str:
    """A share of 1 in words."""
    return f"{100 * share:.0f} %"
