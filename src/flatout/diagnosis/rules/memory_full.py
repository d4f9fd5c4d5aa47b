"""The device's memory is nearly full."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.model.memory import room_bytes
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes


def find(signals: Signals) -> Finding | None:
    peak, total = signals.device.memory_peak_bytes, signals.device.memory_total_bytes
    ranks = signals.world_size
    if (
        signals.device.kind != "cuda"
        or peak is None
        or not total
        or peak < room_bytes(total, ranks)
        or signals.recipe.checkpointing
    ):
        return None
    return Finding(
        "memory-full",
        None,
        f"{percent(peak / total)} of the device's memory is used: no room for a larger batch",
        (f"peak {format_bytes(peak)} of {format_bytes(total)}",),
        Fix(
            "gradient checkpointing gives room for about three times the batch, for a third more compute",
            {"train.checkpointing": True},
        ),
    )
