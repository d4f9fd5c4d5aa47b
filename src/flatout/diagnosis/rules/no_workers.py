"""Batches are prepared in the training thread, so the device waits for every one of them."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.input import workers_needed
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    if signals.input.workers > 0 or signals.step.wait_share <= 0.05:
        return None
    load_seconds = signals.load.seconds if signals.load else signals.step.wait_seconds
    workers = min(workers_needed(load_seconds, signals.step.own_seconds), max(1, signals.host.cores - 1))
    return saving(
        signals,
        "no-workers",
        "data-workers",
        f"Batches are prepared in the training thread (data.workers = 0): {percent(signals.data_wait_share)} of the "
        "run waits for data",
        (
            f"a batch takes {format_seconds(load_seconds)} to prepare, the rest of the step "
            f"{format_seconds(signals.step.own_seconds)}",
            f"{signals.host.cores} usable cores",
        ),
        Fix(f"prepare batches beside the step with {workers} worker(s)", {"data.workers": workers}),
        faster_steps(signals, signals.step_with(workers)),
    )
