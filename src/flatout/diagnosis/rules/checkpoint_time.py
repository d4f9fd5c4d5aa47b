"""Saving takes a good part of the run."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.time.part("checkpoint")
    stepping = signals.time.after_start_seconds
    if stepping <= 0 or seconds / stepping <= 0.05:
        return None
    each = seconds / signals.time.checkpoints if signals.time.checkpoints else seconds
    fix = Fix("save every few epochs", {"checkpoint.every_epochs": 5})
    kept = 0.2
    if signals.recipe.checkpoint_every_steps:
        rarer = max(signals.recipe.checkpoint_every_steps * 10, round(each / (0.02 * max(signals.step.seconds, 1e-6))))
        kept = signals.recipe.checkpoint_every_steps / rarer
        fix = Fix(f"save every {rarer} steps", {"checkpoint.every_steps": rarer})
    saved = seconds * (1 - kept)
    return saving(
        signals,
        "checkpoint-time",
        "checkpoint",
        f"Checkpoints take {percent(seconds / stepping)} of the run",
        (
            f"{signals.time.checkpoints or 'the'} checkpoints took {format_seconds(seconds)}, {format_seconds(each)} "
            "each",
        ),
        fix,
        Interval(saved, saved * 0.7, seconds),
    )
