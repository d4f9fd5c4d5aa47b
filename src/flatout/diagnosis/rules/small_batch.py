"""Most of a step does not depend on the batch: launches, the optimizer, bookkeeping; or is paid for each part of it."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_SMALL, _TINY = 16, 4
_LEAST_STEPS = 10
_ROOM = 3  # a whole batch may take so many times the memory of the run
_LAUNCH_SHARE = Interval(0.5, 0.2, 0.85)
"""Of forward and backward on a tiny batch: what one batch size alone cannot tell from arithmetic."""


def fixed_seconds(signals: Signals) -> Interval:
    """Of a step: what a larger batch would not make longer. An emulated device says so itself."""
    steps = max(1, signals.step.done)
    warm_up = min(signals.step.warm_up_seconds, signals.net("optimizer"))
    around = Interval.exact((signals.net("optimizer") - warm_up) / steps)
    if signals.device.emulated_base_seconds is not None:
        return around + signals.device.emulated_base_seconds
    return around + _fixed_share(signals) * (signals.net("forward", "backward") / steps)


def _fixed_share(signals: Signals) -> Interval:
    """Of forward, backward and validation: what is paid for each batch, whatever its size."""
    base, each = signals.device.emulated_base_seconds, signals.device.emulated_seconds_per_sample
    if base is not None and each is not None and base > 0:
        return Interval.exact(base / (base + each * signals.recipe.batch_size))
    return _LAUNCH_SHARE if base is None and signals.recipe.batch_size <= _TINY else Interval.exact(0.0)


def find(signals: Signals) -> Finding | None:
    return _cut(signals) or _small(signals)


def _cut(signals: Signals) -> Finding | None:
    """A batch in parts that would fit in one: what does not depend on the size is paid once for each part."""
    parts, steps = signals.recipe.accumulate, signals.step.done
    peak, total = signals.device.memory_peak_bytes, signals.device.memory_total_bytes
    if parts < 2 or steps < _LEAST_STEPS or (peak is not None and total and peak * _ROOM > total):
        return None
    size, base = signals.recipe.batch_size / parts, signals.device.emulated_base_seconds
    once = Interval.exact(base) if base is not None else Interval.exact(0.0)
    if base is None and size <= _TINY:
        once = _LAUNCH_SHARE * (signals.net("forward", "backward") / steps / parts)
    saved = once * (steps * (parts - 1))
    if signals.time.share(saved.value) <= 0.03:
        return None
    return saving(
        signals,
        "many-parts",
        "host",
        f"Batches are computed in {parts} parts of {size:.0f}: what does not depend on the size of a part takes "
        f"{percent(signals.time.share(saved.value))} of the run more than in one",
        (f"{format_seconds(once.value)} for each part; memory would hold the whole batch",),
        Fix("compute each batch in one part", {"train.accumulate": 1}),
        Interval(saved.value, 0.8 * saved.low, 1.2 * saved.high),
    )


def _small(signals: Signals) -> Finding | None:
    if (
        signals.recipe.batch_size > _SMALL
        or signals.step.starved
        or signals.step.own_seconds <= 0
        or signals.step.done < _LEAST_STEPS
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
        f"The batch of {signals.recipe.batch_size} is too small: about "
        f"{percent(signals.time.share(share * signals.step.own_seconds * signals.step.done))} of the run goes to what "
        "does not depend on it",
        (
            f"{format_seconds(fixed.value)} of {format_seconds(signals.step.own_seconds)} a step go to launching "
            "work, the optimizer and bookkeeping; flatout probe measures it",
        ),
        Fix(
            f"a batch of {larger} with the learning rate scaled (at most {larger // signals.recipe.batch_size} times), "
            "or compile",
            signals.recipe.batch_change(larger),
        ),
        (fixed * signals.step.done + _fixed_share(signals) * signals.net("validation")) * (7 / 8),
    )
