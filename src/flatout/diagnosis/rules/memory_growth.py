"""Memory that only grows: the run will be killed."""

from itertools import pairwise

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes, format_seconds

_LEAST_BYTES, _LEAST_SAMPLES, _SOON_SECONDS = 100e6, 5, 24 * 3600.0


def find(signals: Signals) -> Finding | None:
    resident, seconds = signals.host.resident_bytes, signals.host.seconds
    half = len(resident) // 2
    late = list(zip(seconds[half:], resident[half:], strict=False))
    if len(late) < _LEAST_SAMPLES:
        return None
    passed, grown = late[-1][0] - late[0][0], late[-1][1] - late[0][1]
    rising = sum(after[1] > before[1] for before, after in pairwise(late))
    if grown < _LEAST_BYTES or passed <= 0 or rising < 0.8 * (len(late) - 1):
        return None
    free = signals.host.available_bytes[-1] if signals.host.available_bytes else signals.host.memory_total_bytes
    lasts = None if free is None else free / (grown / passed)
    return Finding(
        "memory-growth",
        "memory",
        f"Memory grows by {format_bytes(grown / passed)} a second and never falls"
        + ("" if lasts is None else f": the run is out of memory in {format_seconds(lasts)}"),
        (f"{format_bytes(late[0][1])} in the middle of the run, {format_bytes(late[-1][1])} at the end",),
        Fix("look for what is kept from step to step (losses with their graph, growing lists, caches without a limit)"),
        urgent=lasts is None or lasts < _SOON_SECONDS,
    )
