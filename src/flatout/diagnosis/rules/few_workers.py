"""The device waits for data while cores are idle: more workers."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.input import workers_needed
from flatout.diagnosis.rules.augment_bound import augment_dominates
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    load = signals.load
    if signals.input.workers == 0 or not signals.step.starved or load is None or signals.cores_saturated:
        return None
    if signals.fetch_bound or augment_dominates(signals) or signals.input.active_workers >= signals.host.cores:
        return None
    shallow = signals.input.prefetch < signals.input.workers
    needed = max(signals.input.workers + 1, workers_needed(load.seconds, signals.step.own_seconds))
    workers = signals.input.workers if shallow else min(needed, signals.host.cores)
    fix = Fix(f"use {workers} workers", {"data.workers": workers})
    if shallow:
        fix = Fix(f"prepare {2 * workers} batches ahead, so that all workers have one", {"data.prefetch": 2 * workers})
    return saving(
        signals,
        "few-workers",
        "data-workers",
        f"Too few loader workers: {percent(signals.data_wait_share)} of the run waits for data while "
        f"{signals.idle_cores:.1f} of {signals.host.cores} cores are idle",
        (
            f"{signals.input.active_workers} worker(s) at work take {format_seconds(load.seconds)} for a batch, the "
            f"rest of the step takes {format_seconds(signals.step.own_seconds)}",
            f"this run keeps {signals.cores_busy:.1f} of {signals.host.cores} cores busy",
        ),
        fix,
        faster_steps(signals, signals.step_with(workers)),
    )
