"""Moving batches to the device takes a good part of the step."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("copy")
    if signals.time.share(seconds) <= 0.05 or not signals.step.done:
        return None
    return saving(
        signals,
        "copy",
        "copy",
        f"Copying batches to the device takes {percent(signals.time.share(seconds))} of the run",
        (f"{format_seconds(seconds / signals.step.done)} a step",),
        Fix("send uint8 from pinned memory without blocking; normalise on the device"),
        Interval(seconds * 0.75, seconds * 0.5, seconds),
        cost_seconds=seconds,
    )
