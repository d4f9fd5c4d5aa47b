"""Waiting for the store or the disk, not decoding, is what batches wait for."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.rules.throttling import throttled_share
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes, format_seconds


def find(signals: Signals) -> Finding | None:
    load = signals.load
    if not signals.starved or load is None or not signals.fetch_bound or throttled_share(signals) > 0.05:
        return None
    where = "the store" if signals.remote else "the disk"
    return saving(
        signals,
        "slow-fetch",
        "data-fetch",
        f"Reading from {where} is the limit: {percent(signals.wait_share)} of a step waits for data, and fetching is "
        f"{percent(load.fetch_seconds / load.seconds)} of the time for a batch",
        _evidence(signals),
        _fix(signals),
        faster_steps(signals, signals.step_with(max(1, signals.workers), fetch_factor=0.1), error=0.3),
    )


def _evidence(signals: Signals) -> tuple[str, ...]:
    assert signals.load is not None
    lines = [f"a batch is fetched in {format_seconds(signals.load.fetch_seconds)}"]
    if signals.bytes_read and signals.wall_seconds:
        stepping = signals.wall_seconds - signals.part("startup")
        lines.append(f"{format_bytes(signals.bytes_read / max(stepping, 1e-9))}/s were read on average")
    if signals.store is not None and signals.store.request_seconds_p50 is not None:
        lines.append(
            f"a request takes {format_seconds(signals.store.request_seconds_p50)} (p50), "
            f"{format_seconds(signals.store.request_seconds_p99)} (p99)"
        )
    return tuple(lines)


def _fix(signals: Signals) -> Fix:
    if signals.remote and not signals.staged and signals.epochs_planned > 1:
        return Fix("copy the data to local disk while the first epoch trains", {"data.stage": "auto"})
    if signals.remote and signals.workers == 0:
        return Fix("let workers keep several requests in flight", {"data.workers": max(1, signals.cores - 1)})
    if signals.remote:
        return Fix("fewer, larger objects: flatout data pack; or a store and a machine in the same region")
    return Fix("a faster disk, or fewer, larger files: flatout data pack")
