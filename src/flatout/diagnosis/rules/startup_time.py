"""The run takes long to get going."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_ORDINARY_SECONDS = 8.0  # interpreter, torch, listing a dataset: not worth a word


def find(signals: Signals) -> Finding | None:
    seconds = signals.startup_seconds
    if signals.share(seconds) <= 0.10 or seconds <= _ORDINARY_SECONDS:
        return None
    saved = seconds - _ORDINARY_SECONDS / 2
    return saving(
        signals,
        "startup-time",
        "startup",
        f"Starting takes {format_seconds(seconds)}, {percent(signals.share(seconds))} of the run",
        (
            f"{format_seconds(signals.part('startup'))} before the first batch, "
            f"{format_seconds(signals.warm_up_seconds)} more in the first steps",
        ),
        Fix("pack the dataset (no listing), keep the data near, train longer in one go; compile only for long runs"),
        Interval(saved, saved * 0.5, seconds),
    )
