"""Gradients take longer than the backward pass hides."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.communication import (
    Bucket,
    Link,
    even_buckets,
    explaining_bytes_per_second,
    exposed_seconds,
)
from flatout.diagnosis.rules.port_speed import capped_at, gradient_wait_share
from flatout.diagnosis.rules.straggler import straggler_seconds
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def _link_of_a_script(signals: Signals) -> bool:
    """A recorded script does not say where its ranks are. Where none of them lacks a core, it is the link they wait
    for."""
    waited = signals.contention.own() + signals.contention.outside()
    return signals.script is not None and waited < 0.25 * signals.time.part("communication")


def find(signals: Signals) -> Finding | None:
    ranks = signals.ranks
    if ranks is None or ranks.communication_seconds is None or signals.step.seconds <= 0:
        return None
    exposed = ranks.communication_seconds
    if ranks.nodes < 2 and signals.device.kind != "cuda" and not _link_of_a_script(signals):
        return None  # through this machine's memory: ranks that share cores wait for each other, not for a link
    if exposed <= 0.1 * signals.step.seconds or capped_at(signals) is not None or straggler_seconds(signals) > 0:
        return None
    return saving(
        signals,
        "exposed-communication",
        "network",
        f"{percent(gradient_wait_share(signals))} of the run waits for gradients to be exchanged "
        f"between {ranks.world_size} ranks",
        (f"{format_seconds(exposed)} a step are not hidden behind the backward pass",),
        Fix(
            "send gradients in 16 bits, exchange them every few steps (local steps), or use a faster link",
            {"parallel.compress": "bf16"},
        ),
        faster_steps(signals, signals.step.seconds - exposed + _exposed_in_16_bits(signals, exposed), error=0.1),
        cost_seconds=exposed * signals.step.done,
    )


def _exposed_in_16_bits(signals: Signals, exposed: float) -> float:
    """Half the bytes over the link that explains what was measured: what was hidden before stays hidden."""
    ranks = signals.ranks
    if ranks is None or not (ranks.buckets or ranks.gradient_bytes):
        return exposed / 2
    device = signals.step.own_seconds - exposed
    buckets = [Bucket(size, ready) for size, ready in ranks.buckets]
    buckets = buckets or even_buckets(ranks.gradient_bytes or 0.0, device / 3, device * 2 / 3)
    rate = explaining_bytes_per_second(buckets, ranks.world_size, device + exposed, ranks.latency_seconds)
    return min(
        exposed, exposed_seconds(buckets, ranks.world_size, Link(rate, ranks.latency_seconds, compression=0.5), device)
    )
