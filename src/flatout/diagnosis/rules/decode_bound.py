"""Every core decodes and the device still waits: more workers would not help, less decoding would."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.rules.augment_bound import augment_dominates
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    load = signals.load
    if signals.input.workers == 0 or not signals.step.starved or load is None or signals.fetch_bound:
        return None
    hands_free = not signals.cores_saturated and signals.input.active_workers < signals.host.cores
    if hands_free or augment_dominates(signals) or load.augment_seconds > load.decode_seconds:
        return None
    rest = 1 - load.decode_seconds / signals.work_seconds if signals.work_seconds > 0 else 1.0
    return saving(
        signals,
        "decode-bound",
        "data-decode",
        f"Decoding is the limit: {percent(signals.data_wait_share)} of the run waits for data while "
        f"{min(signals.cores_busy, signals.host.cores):.1f} of {signals.host.cores} cores are busy",
        (
            f"decoding takes {format_seconds(load.decode_seconds / signals.batch)} an image, "
            f"{percent(load.decode_seconds / load.seconds)} of the work for a batch",
            f"{signals.input.workers} worker(s) on {signals.host.cores} usable cores",
            *declined_cache(signals),
        ),
        _fix(signals),
        faster_steps(signals, signals.step_with(signals.input.workers, work_factor=rest), error=0.3),
    )


def declined_cache(signals: Signals) -> tuple[str, ...]:
    """Why the loader keeps no decoded samples, where it decided so by itself."""
    choice = signals.input.cache_choice
    return (f"the loader keeps no decoded samples: {choice.reason}",) if choice is not None and choice.declined else ()


def _fix(signals: Signals) -> Fix:
    if signals.cache_is_worth_a_try:
        return Fix(
            "keep decoded samples after the first epoch, or pack them resized: flatout data pack",
            {"data.cache": "auto"},
        )
    return Fix("pack the dataset resized to what the view needs: flatout data pack --help")
