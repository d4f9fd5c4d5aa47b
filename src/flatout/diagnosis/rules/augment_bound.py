"""Augmentation, not decoding, is what keeps the workers busy."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_LEAST_SHARE = 0.3  # of the work for a batch: less is not what limits it, whatever else there is


def augment_dominates(signals: Signals) -> bool:
    """More than 60 % of the work: no number of workers makes that a reasonable share."""
    load = signals.load
    return load is not None and load.augment_seconds > 0.6 * load.seconds


def holds_the_lock(signals: Signals) -> bool:
    """Threads that augment in Python all the time leave the loop little of the interpreter: its steps take longer."""
    load = signals.load
    if (
        load is None
        or signals.input.worker_kind != "thread"
        or not signals.input.active_workers
        or signals.step.starved
    ):
        return False
    slowed = signals.input.python_augment or signals.late_seconds > 0
    return (
        slowed
        and augment_dominates(signals)
        and load.augment_seconds >= 0.7 * signals.step.seconds * signals.input.active_workers
    )


def find(signals: Signals) -> Finding | None:
    load = signals.load
    if load is not None and holds_the_lock(signals):
        return saving(
            signals,
            "augment-bound",
            "data-augment",
            f"Augmentation is the limit: it takes {format_seconds(load.augment_seconds)} a batch in threads that share "
            f"Python's lock with the training loop, whose step takes {format_seconds(signals.step.seconds)}",
            (f"augmenting is {percent(load.augment_seconds / load.seconds)} of the work for a batch",),
            Fix("do it in processes, or with operations that release the lock", {"data.worker_kind": "process"}),
            faster_steps(signals, signals.work_seconds / signals.host.cores, error=0.3),
        )
    if not signals.step.starved or load is None or signals.fetch_bound:
        return None
    busy = signals.cores_saturated or signals.input.active_workers >= signals.host.cores
    matters = load.augment_seconds > max(load.decode_seconds, _LEAST_SHARE * load.seconds)
    if not augment_dominates(signals) and not (busy and matters):
        return None
    rest = 1 - load.augment_seconds / signals.work_seconds if signals.work_seconds > 0 else 1.0
    return saving(
        signals,
        "augment-bound",
        "data-augment",
        f"Augmentation is the limit: {percent(signals.data_wait_share)} of the run waits for data, and augmenting is "
        f"{percent(load.augment_seconds / load.seconds)} of the work for it",
        (
            f"augmenting takes {format_seconds(load.augment_seconds / signals.batch)} an image, decoding "
            f"{format_seconds(load.decode_seconds / signals.batch)}",
            f"{signals.input.workers} worker(s), {signals.host.cores} usable cores",
        ),
        _fix(signals),
        faster_steps(signals, signals.step_with(signals.input.workers, work_factor=rest), error=0.3),
    )


def _fix(signals: Signals) -> Fix:
    if signals.input.python_augment and signals.input.worker_kind == "thread" and signals.host.cores > 1:
        return Fix(
            "colour operations run in Python: drop colour_jitter and trivial_augment from the view, or use processes",
            {"data.worker_kind": "process", "data.workers": max(signals.input.workers, signals.host.cores)},
        )
    return Fix("use a view with a smaller side or fewer operations (views: in the recipe)")
