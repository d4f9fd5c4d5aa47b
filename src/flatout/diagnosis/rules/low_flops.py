"""The device is busy, but not with much arithmetic."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    busy = signals.device.busy_share
    if (
        signals.device.flops_share is None
        or signals.device.flops_share >= 0.25
        or not busy
        or sum(busy) / len(busy) < 0.9
    ):
        return None
    changes: dict[str, object] = {}
    if signals.recipe.precision == "fp32":
        changes["train.precision"] = "auto"  # what the card has: a T4 or V100 has no bf16
    if not signals.recipe.channels_last:
        changes["train.channels_last"] = True
    if not signals.recipe.compiled:
        changes["train.compile"] = True
    computing = signals.time.computing_seconds
    return saving(
        signals,
        "low-flops",
        "compute",
        f"The device is busy but reaches {percent(signals.device.flops_share)} of its arithmetic",
        (
            f"precision {signals.recipe.precision}, channels_last {signals.recipe.channels_last}, compiled "
            f"{signals.recipe.compiled}",
        ),
        Fix("use the tensor cores: 16-bit arithmetic, channels last, compile; flatout tune measures it", changes),
        Interval(computing * 0.3, 0.0, computing * 0.6),
    )
