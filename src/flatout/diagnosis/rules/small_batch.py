"""Most of a step does not depend on the batch: launches, the optimizer, bookkeeping."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_SMALL = 16


def fixed_seconds(signals: Signals) -> float:
    """Of a step: what a larger batch would not make longer. An emulated device says so itself."""
    steps = max(1, signals.steps_done)
    warm_up = min(signals.warm_up_seconds, signals.part("optimizer"))
    around = (signals.part("optimizer") - warm_up) / steps
    return around + (signals.emulated_base_seconds or 0.0)


def find(signals: Signals) -> Finding | None:
    if signals.batch_size > _SMALL or signals.starved or signals.own_seconds <= 0 or signals.steps_done < 10:
        return None
    fixed = min(fixed_seconds(signals), signals.own_seconds)
    share = fixed / signals.own_seconds
    if share <= (0.5 if signals.emulated_base_seconds is not None else 0.25):
        return None
    larger = 8 * signals.batch_size
    saved = signals.steps_done * fixed * 7 / 8
    return saving(
        signals,
        "small-batch",
        "host",
        f"The batch of {signals.batch_size} is too small: {percent(share)} of each step does not depend on the batch",
        (
            f"{format_seconds(fixed)} of {format_seconds(signals.own_seconds)} a step go to launching work, the "
            "optimizer and bookkeeping",
        ),
        Fix(
            f"a batch of {larger} with the learning rate scaled (at most {larger // signals.batch_size} times), "
            "or compile",
            {"data.batch_size": larger},
        ),
        Interval(saved, saved * 0.6, saved * 1.1),
    )
