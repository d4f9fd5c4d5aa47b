"""More compute threads than cores: they wait for each other."""

from flatout.diagnosis.finding import Finding, Fix, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    if signals.device.kind != "cpu" or signals.host.threads <= signals.host.cores:
        return None
    computing = signals.time.computing_seconds + signals.time.part("optimizer")
    return saving(
        signals,
        "too-many-threads",
        "host",
        f"{signals.host.threads} compute threads share {signals.host.cores} usable cores",
        ("threads of one operation wait for the slowest of them",),
        Fix("as many threads as there are cores", {"threads": "auto"}),
        Interval(0.3 * computing, 0.05 * computing, 0.7 * computing),
    )
