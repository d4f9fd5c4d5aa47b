"""A pause at the start of every epoch: workers or connections that are built anew."""

import statistics

from flatout.diagnosis.finding import Finding, Fix, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    if not signals.steps:
        return None
    first = signals.steps[0].epoch
    starts = [step for step in signals.steps if step.epoch != first and step.batch_index == 0]
    if not starts:
        return None
    gaps = [max(0.0, step.wait_seconds - signals.step.wait_seconds) for step in starts]
    gap = statistics.mean(gaps)
    if gap <= 5 * signals.step.seconds or gap < 0.1:
        return None
    return saving(
        signals,
        "epoch-start",
        "epoch-start",
        f"Every epoch starts with a pause of {format_seconds(gap)} before its first batch, "
        f"{gap / signals.step.seconds:.0f} times a step",
        (f"{len(gaps)} epoch starts waited {format_seconds(sum(gaps))} in all",),
        Fix("keep workers, connections and prefetched batches across epochs; make epochs longer"),
        Interval(sum(gaps) * 0.9, sum(gaps) * 0.6, sum(gaps)),
    )
