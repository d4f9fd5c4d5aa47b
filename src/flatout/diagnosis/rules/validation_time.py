"""Validating takes a good part of the run."""

import math

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_WANTED_SHARE = 0.05  # of the run


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("validation")
    share = signals.time.share(seconds)
    if share <= 0.04:
        return None
    count, every, epochs = max(1, signals.time.validations), signals.recipe.validate_every, signals.recipe.epochs
    rarer = min(epochs, max(2, math.ceil(share / _WANTED_SHARE)) * every)
    left: float = math.ceil(epochs / rarer) if epochs else 1  # the last epoch is always validated
    fix = Fix(f"validate every {rarer} epochs", {"validate.every_epochs": rarer})
    if count <= 1 or left >= count:
        fix, left = Fix("it validates only once, at the end: a smaller validation set is all that helps"), count / 2
    saved = seconds * (1 - left / count)
    return saving(
        signals,
        "validation-time",
        "validation",
        f"Validation takes {percent(share)} of the run",
        (f"{count} validation(s) took {format_seconds(seconds)}, {format_seconds(seconds / count)} each",),
        fix,
        Interval(saved, saved * 0.8, max(saved, seconds)),
    )
