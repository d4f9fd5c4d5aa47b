"""Shared batches are thrown away before every job has read them, and are made again."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals

_LOST_SHARE = 0.05


def find(signals: Signals) -> Finding | None:
    shared = signals.input.shared
    if shared is None or not shared.made or shared.evicted_needed / shared.made <= _LOST_SHARE:
        return None
    lost = shared.evicted_needed / shared.made
    return saving(
        signals,
        "small-shared-cache",
        "memory",
        f"The cache of shared batches is too small: {percent(lost)} of what was made was thrown away before every job "
        "had read it",
        (
            f"{shared.evicted_needed} of {shared.made} batches were still needed; this job made {shared.local} of its "
            f"{shared.batches} itself",
            f"{percent(signals.data_wait_share)} of the run waits for data",
        ),
        Fix("give it more memory (data.shared_bytes, flatout serve --capacity), or let jobs of the same speed share"),
        faster_steps(signals, signals.step.seconds - min(lost, 1.0) * signals.step.wait_seconds, error=0.3),
    )
