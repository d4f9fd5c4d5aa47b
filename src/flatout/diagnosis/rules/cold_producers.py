"""Functions that make shared batches start cold too often."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals

_COLD_SHARE = 0.05
_LEAST_MADE = 40
"""Every producer starts once: of few batches, that says nothing."""


def find(signals: Signals) -> Finding | None:
    shared = signals.input.shared
    if shared is None or not signals.step.starved or shared.made < _LEAST_MADE:
        return None
    cold = shared.cold_starts / shared.made
    if cold <= _COLD_SHARE:
        return None
    return saving(
        signals,
        "cold-producers",
        "data-fetch",
        f"Producers of shared batches start cold: {shared.cold_starts} of {shared.made} batches waited for a start",
        (f"{percent(cold)} cold starts; {percent(signals.data_wait_share)} of the run waits for data",),
        Fix("keep functions warm (provisioned concurrency), or make batches by fewer of them: flatout serve --threads"),
        faster_steps(signals, signals.step.seconds - min(1.0, 2 * cold) * signals.step.wait_seconds, error=0.5),
    )
