"""Batches take very different times: on average they are quick enough, but the queue runs empty."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.step import VARIABLE_CV, replay, variation
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    times = [each.seconds for each in signals.input.loads]
    if signals.input.workers == 0 or not signals.step.starved or len(times) < 8:
        return None
    spread = variation(times)
    if spread <= VARIABLE_CV or signals.loading_seconds(signals.input.active_workers) > signals.step.own_seconds:
        return None
    deeper = min(1024, 4 * signals.input.prefetch)
    now = replay(times, signals.step.own_seconds, signals.input.workers, signals.input.prefetch)
    then = replay(times, signals.step.own_seconds, signals.input.workers, deeper)
    fetching = sum(each.fetch_seconds for each in signals.input.loads) > 0.5 * sum(times)
    return saving(
        signals,
        "bursty-loading",
        "data-fetch" if fetching else "data-workers",
        f"Batches come in bursts: {percent(signals.data_wait_share)} of the run waits for data although workers are "
        "quick enough on average",
        (
            f"the time to prepare a batch varies by {percent(spread)}; {signals.input.prefetch} batches are prepared "
            "ahead",
        ),
        Fix(f"prepare {deeper} batches ahead", {"data.prefetch": deeper}),
        faster_steps(signals, signals.step.seconds * then / now if now > 0 else signals.step.seconds),
    )
