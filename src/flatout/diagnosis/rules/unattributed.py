"""Too much of the time has no owner to give a verdict."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("unattributed")
    if signals.time.share(seconds) <= 0.05 or seconds < 1.0:
        return None
    return Finding(
        "unattributed",
        "unexplained",
        f"No verdict: {format_seconds(seconds)}, {percent(signals.time.share(seconds))} of the run, belong to no part "
        "of it",
        ("parts and wall clock do not add up; a suspended machine or a stopped process looks like this",),
        Fix("run again, or calibrate: flatout probe"),
        urgent=True,
    )
