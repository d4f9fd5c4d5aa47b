"""Validating takes a good part of the run."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.part("validation")
    stepping = signals.wall_seconds - signals.part("startup")
    if stepping <= 0 or seconds / stepping <= 0.05:
        return None
    rarer = min(max(2, round(seconds / stepping / 0.05)), max(2, signals.epochs_planned)) * signals.validate_every
    kept = signals.validate_every / rarer
    saved = seconds * (1 - kept)
    return saving(
        signals,
        "validation-time",
        "validation",
        f"Validation takes {percent(seconds / stepping)} of the run",
        (
            f"{signals.validations} validations took {format_seconds(seconds)}, "
            f"{format_seconds(seconds / max(1, signals.validations))} each",
        ),
        Fix(f"validate every {rarer} epochs, or on fewer samples", {"validate.every_epochs": rarer}),
        Interval(saved, saved * 0.8, seconds),
    )
