"""More machines make the run faster but every epoch dearer."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    ranks = signals.ranks
    if ranks is None or ranks.nodes < 2 or ranks.communication_seconds is None or signals.cost.usd_per_hour is None:
        return None
    device = signals.step.seconds - ranks.communication_seconds
    dearer = signals.step.seconds / device - 1 if device > 0 else 0.0
    if dearer <= 0.2:
        return None
    per_epoch = (
        signals.step.seconds
        * signals.step.done
        / max(1, len(signals.learning.epochs))
        / 3600
        * signals.cost.usd_per_hour
    )
    return Finding(
        "too-many-nodes",
        None,
        f"An epoch on {ranks.nodes} nodes costs {percent(dearer)} more than on one",
        ("what is exchanged between nodes is paid for on all of them",),
        Fix("fewer nodes, if the time allows; a faster link otherwise"),
        usd=per_epoch * (1 - 1 / (1 + dearer)),
    )
