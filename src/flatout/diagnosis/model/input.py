"""How fast batches can be prepared: by workers that decode, by a store that answers, by cores that are shared."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PreparationCosts:
    """What preparing one sample takes."""

    decode_seconds: float
    """Decoding and augmenting, on one core."""
    bytes: float = 0.0
    latency_seconds: float = 0.0
    """From request to first byte; 0 where the data is local or in memory."""
    stream_bytes_per_second: float = math.inf
    """Of one request."""


@dataclass(frozen=True)
class Loading:
    """Who prepares batches, and what they share."""

    workers: float
    cores: float
    in_flight: float = 1.0
    """Requests a worker has under way at once."""
    fetchers: float = 0.0
    """Further threads that only wait for the store, so that workers only decode; 0 where workers do both."""
    storage_bytes_per_second: float = math.inf
    """What the store, the disk or the link gives to all of them together."""


def fetch_seconds(batch: float, costs: PreparationCosts, in_flight: float) -> float:
    """One worker's wait for the samples of a batch."""
    return batch * (costs.latency_seconds / max(1.0, in_flight) + costs.bytes / costs.stream_bytes_per_second)


def batch_seconds(batch: float, costs: PreparationCosts) -> float:
    """L: one worker's time for one batch, fetch and decode one after the other."""
    return fetch_seconds(batch, costs, 1.0) + batch * costs.decode_seconds


def batches_per_second(batch: float, costs: PreparationCosts, loading: Loading) -> float:
    """The slowest of workers, cores and store. Workers beyond the cores still help to wait, not to decode."""
    decode = batch * costs.decode_seconds
    fetch = fetch_seconds(batch, costs, loading.in_flight)
    limits = [
        loading.storage_bytes_per_second / (batch * costs.bytes) if costs.bytes else math.inf,
        loading.cores / decode if decode else math.inf,
    ]
    if loading.fetchers:
        limits += [
            _per_second(loading.fetchers, fetch),
            _per_second(loading.workers, decode),
        ]
    else:
        limits.append(_per_second(loading.workers, fetch + decode))
    return min(limits)


def workers_needed(load_seconds: float, device_seconds: float) -> int:
    """W = ceil(L / G): enough that the device never waits."""
    return max(1, math.ceil(load_seconds / device_seconds)) if device_seconds > 0 else 1


def _per_second(hands: float, seconds: float) -> float:
    return hands / seconds if seconds else math.inf
