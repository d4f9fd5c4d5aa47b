"""Activations are computed twice though there is room to keep them."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    peak, total = signals.device.memory_peak_bytes, signals.device.memory_total_bytes
    if not signals.recipe.checkpointing or peak is None or not total or peak >= 0.5 * total:
        return None
    forward = signals.net("forward")
    return saving(
        signals,
        "needless-checkpointing",
        "compute",
        f"Gradient checkpointing is on but only {percent(peak / total)} of the memory is used",
        ("the forward pass is computed twice",),
        Fix("turn it off", {"train.checkpointing": False}),
        Interval(forward * 0.9, forward * 0.5, forward * 1.1),
    )
