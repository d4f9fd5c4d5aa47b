"""Most of a step does not depend on the batch: launches, the optimizer, bookkeeping."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_SMALL, _TINY = 16, 4
_LAUNCH_SHARE = Interval(0.5, 0.2, 0.85)
"""Of forward and backward on a tiny batch: what one batch size alone cannot tell from arithmetic."""


def fixed_seconds(signals: Signals) -> Interval:
    """Of a step: what a larger batch would not make longer. An emulated device says so itself."""
    steps = max(1, signals.steps_done)
    warm_up = min(signals.warm_up_seconds, signals.part("optimizer"))
    around = Interval.exact((signals.part("optimizer") - warm_up) / steps)
    if signals.emulated_base_seconds is not None:
        return around + signals.emulated_base_seconds
    if signals.batch_size > _TINY:
        return around
    return around + _LAUNCH_SHARE * ((signals.part("forward") + signals.part("backward")) / steps)


def find(signals: Signals) -> Finding | None:
    if signals.batch_size > _SMALL or signals.starved or signals.own_seconds <= 0 or signals.steps_done < 10:
        return None
    fixed = fixed_seconds(signals)
    share = min(1.0, fixed.value / signals.own_seconds)
    if share <= (0.5 if signals.emulated_base_seconds is not None else 0.25):
        return None
    larger = 8 * signals.batch_size
    return saving(
        signals,
        "small-batch",
        "host",
        f"The batch of {signals.batch_size} is too small: about {percent(share)} of each step does not depend on it",
        (
            f"{format_seconds(fixed.value)} of {format_seconds(signals.own_seconds)} a step go to launching work, the "
            "optimizer and bookkeeping; flatout probe measures it",
        ),
        Fix(
            f"a batch of {larger} with the learning rate scaled (at most {larger // signals.batch_size} times), "
            "or compile",
            signals.batch_change(larger),
        ),
        fixed * (signals.steps_done * 7 / 8),
    )
