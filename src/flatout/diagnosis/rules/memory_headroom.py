"""Much of the device's memory is unused: a larger batch fits."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes


def find(signals: Signals) -> Finding | None:
    peak, total = signals.device_memory_peak_bytes, signals.device_memory_total_bytes
    if peak is None or not total or peak >= 0.6 * total or signals.checkpointing:
        return None
    larger = int(signals.batch_size * 0.9 * total / peak) // 8 * 8
    return Finding(
        "memory-headroom",
        None,
        f"{percent(1 - peak / total)} of the device's memory was never used: a batch of about {larger} fits",
        (f"peak {format_bytes(peak)} of {format_bytes(total)} at a batch of {signals.batch_size}",),
        Fix(
            "a larger batch, with the learning rate scaled; flatout tune measures what it buys",
            signals.batch_change(larger),
        ),
    )
