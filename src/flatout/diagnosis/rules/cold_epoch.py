"""The first epoch is slower than the others: it reads what later ones find nearby."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.rules.decode_bound import declined_cache
from flatout.diagnosis.rules.throttling import throttled_share
from flatout.diagnosis.signal_groups import WARM_UP_STEPS
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    ratio = signals.step.cold_ratio
    if ratio is None or ratio <= 1.3 or throttled_share(signals) > 0.01:  # throttling.py names that cause
        return None
    first = [step for step in signals.steps[WARM_UP_STEPS:] if step.epoch == signals.steps[0].epoch]
    extra = sum(max(0.0, step.wait_seconds - signals.step.wait_seconds) for step in first)
    if signals.time.share(extra) <= 0.05:
        return None
    fetching = (signals.input.fetch_seconds or 0.0) > (signals.input.decode_seconds or 0.0) + (
        signals.input.augment_seconds or 0.0
    )
    return saving(
        signals,
        "cold-epoch",
        "data-fetch" if fetching or signals.input.remote else "data-decode",
        f"The first epoch is cold: its steps take {ratio:.1f} times as long as those of later epochs, because "
        f"{'the store is read' if fetching or signals.input.remote else 'samples are decoded'} only then",
        (
            f"it waits {format_seconds(extra)} longer for data, {percent(signals.time.share(extra))} of the run",
            f"later steps take {format_seconds(signals.step.seconds)}",
            *declined_cache(signals),
        ),
        _fix(signals, fetching),
        Interval(extra * 0.7, extra * 0.3, extra),
    )


def _fix(signals: Signals, fetching: bool) -> Fix:
    if fetching or signals.input.remote:
        return Fix("judge speed by warm epochs; stage before the machine is rented: flatout data stage")
    if declined_cache(signals):
        return Fix(
            "judge speed by warm epochs; pack the samples, which reads them from a few large files: flatout data pack"
        )
    return Fix("keep decoded samples from run to run, or pack them: flatout data pack", {"data.cache": "disk"})
