"""Much of the device's memory is unused: a larger batch fits."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.model.memory import room_bytes
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes


def find(signals: Signals) -> Finding | None:
    peak, total = signals.device.memory_peak_bytes, signals.device.memory_total_bytes
    if (
        signals.device.kind != "cuda"
        or peak is None
        or not total
        or peak >= 0.6 * total
        or signals.recipe.checkpointing
    ):
        return None
    ranks = signals.world_size
    larger = int(signals.recipe.batch_size * room_bytes(total, ranks) / peak) // 8 * 8
    if larger <= signals.recipe.batch_size:
        return None
    return Finding(
        "memory-headroom",
        None,
        f"{percent(1 - peak / total)} of the device's memory was never used: a batch of about {larger} fits",
        (
            f"tensors took {format_bytes(peak)} of {format_bytes(total)} at a batch of {signals.recipe.batch_size}",
            f"they may take {format_bytes(room_bytes(total, ranks))}: the rest is for the CUDA context"
            f"{', NCCL' if ranks > 1 else ''} and what fragmentation makes unusable",
        ),
        Fix(
            "a larger batch, with the learning rate scaled; flatout tune measures what it buys",
            signals.recipe.batch_change(larger),
        ),
    )
