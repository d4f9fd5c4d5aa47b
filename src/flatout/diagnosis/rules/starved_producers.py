"""Jobs wait for shared batches while every producer is at work: there are too few producers."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals

_BUSY_SHARE = 0.8


def find(signals: Signals) -> Finding | None:
    shared = signals.input.shared
    if shared is None or not signals.step.starved or not shared.answers:
        return None
    busy = shared.busy_answers / shared.answers
    if busy < _BUSY_SHARE:
        return None
    return saving(
        signals,
        "starved-producers",
        "data-workers",
        f"Shared batches are made too slowly: {percent(signals.data_wait_share)} of the run waits for them",
        (
            f"no producer was free at {percent(busy)} of this job's {shared.answers} requests",
            f"{shared.made} batches were made for all jobs while this one took {shared.batches}, "
            f"{shared.local} of which it made itself",
        ),
        Fix(
            "give the service more hands (flatout serve --threads, --ray or --function elsewhere), or less work for "
            "each batch: flatout data pack"
        ),
        faster_steps(signals, signals.step.own_seconds, error=0.3),
    )
