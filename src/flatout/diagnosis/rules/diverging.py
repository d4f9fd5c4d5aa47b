"""The loss grows instead of falling, or is no number any more."""

import math

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    if signals.status == "failed":
        return None
    losses = [step.loss for step in signals.steps if step.loss is not None]
    bad = next((number for number, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        return _diverged(
            f"The loss is {losses[bad]} from recorded step {bad + 1} on", losses[max(0, bad - 3) : bad + 1]
        )
    if len(losses) < 10:
        return None
    tenth = max(1, len(losses) // 10)
    before, after = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    limit = 2 * max(before, math.log(signals.learning.classes) if signals.learning.classes else 0.0)
    if after <= limit:
        return None
    return _diverged(f"The loss grew from {before:.2f} to {after:.2f}", losses[-3:])


def _diverged(title: str, losses: list[float]) -> Finding:
    return Finding(
        "diverged",
        "diverged",
        f"Training diverged: {title[0].lower()}{title[1:]}",
        ("losses " + ", ".join(f"{loss:.3g}" for loss in losses),),
        Fix("lower train.lr (flatout lr-find suggests one), set train.clip_norm", {"train.clip_norm": 1.0}),
        urgent=True,
    )
