"""Validating takes a good part of the run."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.time.part("validation")
    stepping = signals.time.after_start_seconds
    if stepping <= 0 or seconds / stepping <= 0.05:
        return None
    wanted = max(2, round(seconds / stepping / 0.05)) * signals.recipe.validate_every
    rarer = min(wanted, signals.recipe.epochs)
    fix = Fix(f"validate every {rarer} epochs, or on fewer samples", {"validate.every_epochs": rarer})
    if rarer <= signals.recipe.validate_every:  # once, at the end
        rarer, fix = 2 * signals.recipe.validate_every, Fix("validate on half the samples, or in larger batches")
    saved = seconds * (1 - signals.recipe.validate_every / rarer)
    return saving(
        signals,
        "validation-time",
        "validation",
        f"Validation takes {percent(seconds / stepping)} of the run",
        (
            f"{signals.time.validations} validations took {format_seconds(seconds)}, "
            f"{format_seconds(seconds / max(1, signals.time.validations))} each",
        ),
        fix,
        Interval(saved, saved * 0.8, seconds),
    )
