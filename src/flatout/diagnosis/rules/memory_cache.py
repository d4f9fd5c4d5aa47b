"""Data that fits memory is decoded again in every epoch."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes

_DECODED_FACTOR = 8  # decoded pixels over JPEG bytes, roughly


def find(signals: Signals) -> Finding | None:
    load, memory, data = signals.load, signals.host.memory_total_bytes, signals.input.dataset_bytes
    if not signals.cache_is_worth_a_try or load is None or memory is None or not data:
        return None
    if not signals.step.starved or signals.work_seconds <= 0 or data * _DECODED_FACTOR > 0.7 * memory:
        return None
    rest = 1 - load.decode_seconds / signals.work_seconds
    repeats = (signals.recipe.epochs - 1) / signals.recipe.epochs
    new_step = signals.step_with(max(1, signals.input.workers), fetch_factor=0.1, work_factor=rest)
    decoding = signals.cores_saturated and signals.input.workers > 0 and not signals.fetch_bound
    return saving(
        signals,
        "memory-cache",
        "data-decode" if decoding else None,
        f"The data is decoded again in each of {signals.recipe.epochs} epochs though it fits memory",
        (
            f"{format_bytes(data)} on disk, about {format_bytes(data * _DECODED_FACTOR)} decoded, "
            f"{format_bytes(memory)} of memory",
            f"decoding is {percent(load.decode_seconds / load.seconds)} of the work for a batch",
        ),
        Fix("keep decoded samples in memory", {"data.cache": "memory"}),
        faster_steps(signals, new_step, error=0.3) * repeats,
    )
