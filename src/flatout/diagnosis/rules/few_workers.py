"""The device waits for data while cores are idle: more workers."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.input import workers_needed
from flatout.diagnosis.rules.augment_bound import augment_dominates
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    load = signals.load
    if signals.workers == 0 or not signals.starved or load is None or signals.cores_saturated:
        return None
    if signals.fetch_bound or augment_dominates(signals) or signals.workers >= signals.cores:
        return None
    workers = min(max(signals.workers + 1, workers_needed(load.seconds, signals.own_seconds)), signals.cores)
    return saving(
        signals,
        "few-workers",
        "data-workers",
        f"Too few loader workers: {percent(signals.wait_share)} of each step waits for data while "
        f"{signals.idle_cores:.1f} of {signals.cores} cores are idle",
        (
            f"{signals.workers} worker(s) take {format_seconds(load.seconds)} for a batch, the rest of the step takes "
            f"{format_seconds(signals.own_seconds)}",
            f"this run keeps {signals.cores_busy:.1f} of {signals.cores} cores busy",
        ),
        Fix(f"use {workers} workers", {"data.workers": workers}),
        faster_steps(signals, signals.step_with(workers)),
    )
