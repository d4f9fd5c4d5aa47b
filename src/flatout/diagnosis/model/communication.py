"""Gradients on the wire: bucket by bucket, because the closed forms err by -15 % to +51 %."""

from collections.abc import Sequence
from dataclasses import dataclass

ROUND_CAPS_BITS_PER_SECOND = (10e6, 100e6, 1e9, 2.5e9, 5e9, 10e9, 25e9, 40e9, 50e9, 100e9, 200e9, 400e9)
"""Speeds that ports are sold and set at."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together: how many bytes, and when after the start of the step they are ready."""

    bytes: float
    ready_seconds: float


@dataclass(frozen=True)
class Link:
    """What lies between the ranks. `latency_seconds` is paid once for every bucket."""

    bytes_per_second: float
    latency_seconds: float = 0.0
    compression: float = 1.0
    """Bytes sent for each byte of gradient: 0.5 with a 16-bit hook."""


def even_buckets(
    gradient_bytes: float, forward_seconds: float, backward_seconds: float, bucket_bytes: float = 25 * 2**20
) -> list[Bucket]:
    """Buckets as DDP fills them, ready one after the other while the backward pass goes on."""
    count = max(1, round(gradient_bytes / bucket_bytes))
    return [
        Bucket(gradient_bytes / count, forward_seconds + backward_seconds * (number + 1) / count)
        for number in range(count)
    ]


def ring_bytes(gradient_bytes: float, ranks: int) -> float:
    """What one rank sends in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * gradient_bytes


def finished_seconds(buckets: Sequence[Bucket], ranks: int, link: Link) -> float:
    """When the last bucket has arrived: each waits for its gradients and for the bucket before it."""
    finished = 0.0
    for bucket in buckets:
        wire_seconds = ring_bytes(bucket.bytes, ranks) * link.compression / link.bytes_per_second
        finished = max(finished, bucket.ready_seconds) + link.latency_seconds + wire_seconds
    return finished


def exposed_seconds(buckets: Sequence[Bucket], ranks: int, link: Link, device_seconds: float) -> float:
    """X: what of the communication is not hidden behind the device's own step."""
    return max(0.0, finished_seconds(buckets, ranks, link) - device_seconds) if ranks > 1 else 0.0


def explaining_bytes_per_second(
    buckets: Sequence[Bucket], ranks: int, step_seconds: float, latency_seconds: float = 0.0
) -> float:
    """The bandwidth at which the last bucket arrives with the end of a measured step (bisection)."""
    low, high = 1.0, 1e12
    for _ in range(100):
        middle = (low * high) ** 0.5
        late = finished_seconds(buckets, ranks, Link(middle, latency_seconds)) > step_seconds
        low, high = (middle, high) if late else (low, middle)
    return high


def round_cap(bits_per_second: float, tolerance: float = 0.1) -> float | None:
    """The port speed that a flat line sits under: at 90 % to 102 % of it, or None."""
    for cap in ROUND_CAPS_BITS_PER_SECOND:
        if cap * (1 - tolerance) <= bits_per_second <= cap * 1.02:
            return cap
    return None
