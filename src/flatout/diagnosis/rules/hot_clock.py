"""The device lowers its clock because it is hot."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    clock, celsius = signals.device.clock_share, signals.device.celsius
    if not clock or not celsius or max(celsius) < 80:
        return None
    hot = [share for share, degrees in zip(clock, celsius, strict=False) if degrees >= 80]
    share = sum(hot) / len(hot)
    if share >= 0.9:
        return None
    computing = signals.time.computing_seconds
    saved = computing * (1 - share)
    return saving(
        signals,
        "hot-clock",
        "compute",
        f"The device is hot and runs at {percent(share)} of its clock",
        (f"up to {max(celsius):.0f} degrees",),
        Fix("better cooling, or another node"),
        Interval(saved, saved * 0.5, saved * 1.2),
    )
