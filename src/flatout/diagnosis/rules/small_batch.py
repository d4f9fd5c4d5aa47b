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
    steps = max(1, signals.step.done)
    warm_up = min(signals.step.warm_up_seconds, signals.time.part("optimizer"))
    around = Interval.exact((signals.time.part("optimizer") - warm_up) / steps)
    if signals.device.emulated_base_seconds is not None:
        return around + signals.device.emulated_base_seconds
    if signals.recipe.batch_size > _TINY:
        return around
    return around + _LAUNCH_SHARE * ((signals.time.computing_seconds) / steps)


def find(signals: Signals) -> Finding | None:
    if (
        signals.recipe.batch_size > _SMALL
        or signals.step.starved
        or signals.step.own_seconds <= 0
        or signals.step.done < 10
    ):
        return None
    fixed = fixed_seconds(signals)
    share = min(1.0, fixed.value / signals.step.own_seconds)
    if share <= (0.5 if signals.device.emulated_base_seconds is not None else 0.25):
        return None
    larger = 8 * signals.recipe.batch_size
    return saving(
        signals,
        "small-batch",
        "host",
        f"The batch of {signals.recipe.batch_size} is too small: about {percent(share)} of each step does not depend "
        "on it",
        (
            f"{format_seconds(fixed.value)} of {format_seconds(signals.step.own_seconds)} a step go to launching "
            "work, the optimizer and bookkeeping; flatout probe measures it",
        ),
        Fix(
            f"a batch of {larger} with the learning rate scaled (at most {larger // signals.recipe.batch_size} times), "
            "or compile",
            signals.recipe.batch_change(larger),
        ),
        fixed * (signals.step.done * 7 / 8),
    )
