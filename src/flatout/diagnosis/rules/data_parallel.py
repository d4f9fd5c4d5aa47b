"""DataParallel: one process feeds all devices."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, saving
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    ranks = signals.ranks
    if ranks is None or ranks.mode != "dp" or signals.device.count < 2:
        return None
    return saving(
        signals,
        "data-parallel",
        "host",
        f"DataParallel drives {signals.device.count} devices from one process",
        ("the first device gathers every output and holds every gradient",),
        Fix("one process for each device", {"parallel.mode": "ddp"}),
        faster_steps(signals, signals.step.seconds * 0.75, error=0.2),
    )
