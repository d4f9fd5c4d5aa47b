"""Memory that only grows: a longer run will be killed."""

import statistics
from bisect import bisect
from collections.abc import Sequence

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes, format_seconds

_LEAST_SAMPLES = 8  # of the second half of the run; fewer lie on a line by luck
_LEAST_BYTES = 50e6
_LEAST_SHARE = 0.10  # of what is held in the middle of the run
_STRAIGHT = 0.9  # of the variance that a straight line explains
_SOON_SECONDS = 24 * 3600.0


def find(signals: Signals) -> Finding | None:
    """The second half alone: until then caches fill and allocators find their size."""
    whole = signals.host.resident_bytes[: _until_last_step(signals)]
    half = max(len(whole) // 2, _before_first_step(signals))  # imports fill memory, too
    held, at = whole[half:], signals.host.seconds[half : len(whole)]
    if len(held) < _LEAST_SAMPLES or len(at) != len(held) or at[-1] <= at[0]:
        return None
    thirds = [statistics.fmean(held[len(held) * part // 3 : len(held) * (part + 1) // 3]) for part in range(3)]
    grown = held[-1] - held[0]
    steady = thirds[2] - thirds[1] > 0.6 * (thirds[1] - thirds[0]) > 0
    if grown < max(_LEAST_BYTES, _LEAST_SHARE * held[0]) or not steady:
        return None
    if max(_straightness(at, held), _straightness(_steps_done(signals, at), held)) < _STRAIGHT:
        return None
    rate = grown / (at[-1] - at[0])
    free = signals.host.available_bytes[-1] if signals.host.available_bytes else signals.host.memory_total_bytes
    lasts = None if free is None else free / rate
    return Finding(
        "memory-growth",
        "memory",
        f"Memory grows by {format_bytes(rate)} a second and never falls"
        + ("" if lasts is None else f": a run that goes on is out of memory in {format_seconds(lasts)}"),
        (
            f"{format_bytes(held[0])} in the middle of the run, {format_bytes(held[-1])} at the end, "
            f"in {len(held)} readings over {format_seconds(at[-1] - at[0])}",
        ),
        Fix("look for what is kept from step to step (losses with their graph, growing lists, caches without a limit)"),
        urgent=lasts is None or lasts < _SOON_SECONDS,
    )


def _straightness(axis: Sequence[float], held: Sequence[float]) -> float:
    """The share of the variance of `held` that a line over the axis explains."""
    if len(set(axis)) < _LEAST_SAMPLES // 2 or len(set(held)) < 2:
        return 0.0
    return statistics.correlation(axis, held) ** 2


def _until_last_step(signals: Signals) -> int | None:
    """How many readings were taken before training was over: what was held is let go of then."""
    last = signals.steps[-1].time_unix if signals.steps else None
    return None if last is None else bisect(signals.host.seconds, last)


def _before_first_step(signals: Signals) -> int:
    first = signals.steps[0].time_unix if signals.steps else None
    return 0 if first is None else bisect(signals.host.seconds, first)


def _steps_done(signals: Signals, at: Sequence[float]) -> list[float]:
    """What leaks with every step does not while a run validates."""
    ends = [step.time_unix for step in signals.steps if step.time_unix is not None]
    return [float(bisect(ends, moment)) for moment in at]
