"""Gradients take longer than the backward pass hides."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
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
        faster_steps(signals, signals.step.seconds - exposed / 2, error=0.1),
        cost_seconds=exposed * signals.step.done,
    )
