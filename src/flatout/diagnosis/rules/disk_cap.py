"""The disk gives all it can."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes


def find(signals: Signals) -> Finding | None:
    busy = signals.host.disk_busy_share
    if not busy or signals.input.remote or not signals.step.starved:
        return None
    mean = sum(busy) / len(busy)
    if mean < 0.95:
        return None
    read = signals.host.disk_read_bytes_per_second
    rate = max(read) if read else None
    return saving(
        signals,
        "disk-cap",
        "data-fetch",
        f"The disk is the limit: busy {percent(mean)} of the time while {percent(signals.data_wait_share)} of the "
        "run waits for data",
        (f"it gave at most {format_bytes(rate)}/s",),
        Fix("a faster volume, or less to read: flatout data pack with resized images"),
        faster_steps(signals, signals.step_with(signals.input.workers, fetch_factor=0.5), error=0.3),
    )
