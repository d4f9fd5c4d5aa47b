"""Waiting for the store or the disk, not decoding, is what batches wait for."""

import statistics

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.rules.throttling import throttled_share
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes, format_seconds

_TAIL_RATIO = 5.0
_LEAST_BATCHES = 20


def find(signals: Signals) -> Finding | None:
    load = signals.load
    if not signals.step.starved or load is None or not signals.fetch_bound or throttled_share(signals) > 0.05:
        return None
    where = "the store" if signals.input.remote else "the disk"
    return saving(
        signals,
        "slow-fetch",
        "data-fetch",
        f"Reading from {where} is the limit: {percent(signals.data_wait_share)} of the run waits for data, and "
        f"{_tail(signals) or f'fetching is {percent(load.fetch_seconds / load.seconds)} of the time for a batch'}",
        _evidence(signals),
        _fix(signals),
        faster_steps(signals, signals.step_with(signals.input.workers, fetch_factor=0.1), error=0.3),
    )


def _tail(signals: Signals) -> str | None:
    """Few slow reads among many quick ones, in words: then they are the story, not the mean."""
    store = signals.input.store
    if store is not None and store.request_seconds_p50 and store.request_seconds_p99:
        if store.request_seconds_p99 > _TAIL_RATIO * store.request_seconds_p50:
            return (
                f"the slowest requests are why: 1 in 100 takes {format_seconds(store.request_seconds_p99)} or more, "
                f"half of them at most {format_seconds(store.request_seconds_p50)}"
            )
        return None
    times = sorted(each.fetch_seconds for each in signals.input.loads)
    slowest = times[-max(1, len(times) // 10) :]
    usual = statistics.median(times) if times else 0.0
    if len(times) < _LEAST_BATCHES or sum(slowest) < 0.5 * sum(times) or slowest[0] < _TAIL_RATIO * usual:
        return None
    return (
        f"the slowest reads are why: one batch in ten takes {format_seconds(slowest[0])} or more to fetch, "
        f"half of them at most {format_seconds(usual)}"
    )


def _evidence(signals: Signals) -> tuple[str, ...]:
    assert signals.load is not None
    lines = [f"a batch is fetched in {format_seconds(signals.load.fetch_seconds)}"]
    if signals.input.bytes_read and signals.time.wall_seconds:
        stepping = signals.time.after_start_seconds
        lines.append(f"{format_bytes(signals.input.bytes_read / max(stepping, 1e-9))}/s were read on average")
    if signals.input.store is not None and signals.input.store.request_seconds_p50 is not None:
        lines.append(
            f"a request takes {format_seconds(signals.input.store.request_seconds_p50)} (p50), "
            f"{format_seconds(signals.input.store.request_seconds_p99)} (p99)"
        )
    return tuple(lines)


def _fix(signals: Signals) -> Fix:
    if signals.input.remote and not signals.input.staged and signals.recipe.epochs > 1:
        return Fix("copy the data to local disk while the first epoch trains", {"data.stage": "auto"})
    if signals.input.remote and signals.input.workers == 0:
        return Fix("let workers keep several requests in flight", {"data.workers": max(1, signals.host.cores - 1)})
    if signals.input.remote:
        return Fix("fewer, larger objects: flatout data pack; or a store and a machine in the same region")
    return Fix("a faster disk, or fewer, larger files: flatout data pack")
