"""Saving takes a good part of the run."""

import math
from typing import Any

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes, format_seconds

_WANTED_SHARE = 0.02  # of the run
_SLOW_BYTES_PER_SECOND = 100e6  # a disk; what is quicker is not the story
_LARGE_BYTES = 5e6  # of a smaller file the delay counts, not the rate


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("checkpoint")
    if signals.time.share(seconds) <= 0.04:
        return None
    count = max(1, signals.time.checkpoints)
    each = seconds / count
    changes, rarer = _rarer(signals, count, each)
    saved = seconds * (1 - rarer / count)
    text = "save more rarely" if changes else "a faster disk for the run's directory"
    size = signals.time.checkpoint_bytes
    slow = size is not None and size > _LARGE_BYTES and size < each * _SLOW_BYTES_PER_SECOND
    rate = f", which are written at {format_bytes((size or 0.0) / each)}/s" if slow else ""
    return saving(
        signals,
        "checkpoint-time",
        "checkpoint",
        f"Checkpoints{rate} take {percent(signals.time.share(seconds))} of the run",
        (f"{count} checkpoints took {format_seconds(seconds)}, {format_seconds(each)} each",),
        Fix(f"{text}; a faster disk for the run's directory" if slow and changes else text, changes),
        Interval(saved, saved * 0.7, seconds),
    )


def _rarer(signals: Signals, count: int, each: float) -> tuple[dict[str, Any], int]:
    """The change, and how many checkpoints are left: the last one always is."""
    allowed = max(1, math.floor(_WANTED_SHARE * signals.time.wall_seconds / each)) if each > 0 else count
    recipe, steps = signals.recipe, signals.step.done
    if recipe.checkpoint_every_steps:
        every = math.ceil(steps / allowed)
        if every >= steps:
            return {"checkpoint.every_steps": None}, 1
        return {"checkpoint.every_steps": every}, max(1, steps // every)
    every = min(recipe.epochs, math.ceil(recipe.epochs / allowed))
    if every <= recipe.checkpoint_every_epochs or count <= 1:
        return {}, count
    return {"checkpoint.every_epochs": every}, math.ceil(recipe.epochs / every)
