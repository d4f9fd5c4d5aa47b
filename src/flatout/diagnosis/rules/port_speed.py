"""The network sits flat at a round number: the speed a port was set to."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.communication import (
    ROUND_CAPS_BITS_PER_SECOND,
    Bucket,
    Link,
    even_buckets,
    exposed_seconds,
    round_cap,
)
from flatout.diagnosis.rules.straggler import straggler_seconds
from flatout.diagnosis.signals import Signals
from flatout.units import format_bits_per_second, format_bytes, format_seconds


def capped_at(signals: Signals) -> float | None:
    """Bits per second of the port, where traffic sits just under a round number."""
    ranks = signals.ranks
    if ranks is None or ranks.communication_seconds is None or straggler_seconds(signals) > 0:
        return None
    if ranks.interface == "lo" or ranks.nodes < 2:
        return None  # no port is between ranks of one machine
    if ranks.communication_seconds <= 0.1 * signals.step.seconds:
        return None
    if ranks.cap_bits_per_second is not None:  # measured before the first step
        return ranks.cap_bits_per_second
    return None if ranks.peak_bits_per_second is None else round_cap(ranks.peak_bits_per_second)


def gradient_wait_share(signals: Signals) -> float:
    """Of the run: without what ranks wait for each other, nor for a core."""
    exposed = (signals.ranks.communication_seconds or 0.0) if signals.ranks is not None else 0.0
    return signals.time.share(min(exposed * signals.step.done, signals.net("communication")))


def find(signals: Signals) -> Finding | None:
    cap, ranks = capped_at(signals), signals.ranks
    if cap is None or ranks is None or ranks.communication_seconds is None:
        return None
    seen = ranks.link_bits_per_second or ranks.peak_bits_per_second
    waits = gradient_wait_share(signals)
    faster = next((each for each in ROUND_CAPS_BITS_PER_SECOND if each > 5 * cap), 10 * cap)
    return saving(
        signals,
        "port-speed",
        "network",
        f"The network is the limit: it carries {format_bits_per_second(seen)}, a "
        f"{format_bits_per_second(cap)} port, and {percent(waits)} of the run waits for gradients",
        (
            f"{format_seconds(ranks.communication_seconds)} of {format_seconds(signals.step.seconds)} a step wait for "
            f"communication; {format_bytes(cap / 8)}/s is all this port can move",
        ),
        Fix(f"raise the port to {format_bits_per_second(faster)} (switch, instance type or provider's setting)"),
        faster_steps(signals, _step_at(signals, faster), error=0.2),
        cost_seconds=ranks.communication_seconds * signals.step.done,
    )


def _step_at(signals: Signals, bits_per_second: float) -> float:
    ranks = signals.ranks
    assert ranks is not None
    assert ranks.communication_seconds is not None
    device = signals.step.own_seconds - ranks.communication_seconds
    buckets = [Bucket(size, ready) for size, ready in ranks.buckets]
    if not buckets and ranks.gradient_bytes is None:
        return device + ranks.communication_seconds * (capped_at(signals) or bits_per_second) / bits_per_second
    buckets = buckets or even_buckets(ranks.gradient_bytes or 0.0, device / 3, device * 2 / 3)
    link = Link(bits_per_second / 8, ranks.latency_seconds)
    return device + exposed_seconds(buckets, ranks.world_size, link, device)
