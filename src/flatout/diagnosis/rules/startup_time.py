"""The run takes long to get going."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_ORDINARY_SECONDS = 5.0  # listing a dataset, building a model, the first step: not worth a word
_WORTH_NAMING = 0.05  # of the start
_ORDINARY_IMPORT_SECONDS = 12.0  # torch on a slow, busy machine


def find(signals: Signals) -> Finding | None:
    seconds = signals.startup_seconds
    saved = seconds - _ORDINARY_SECONDS - min(signals.time.import_seconds or 0.0, _ORDINARY_IMPORT_SECONDS)
    if signals.time.share(seconds) <= 0.10 or saved <= 2.0:
        return None
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_seconds(value)}"
        for name, value in sorted(signals.time.startup_parts.items(), key=lambda item: -item[1])
        if value > _WORTH_NAMING * seconds
    )
    named = f": {parts}" if parts else ""
    return saving(
        signals,
        "startup-time",
        "startup",
        f"Starting takes {format_seconds(seconds)}, {percent(signals.time.share(seconds))} of the run",
        (
            f"{format_seconds(signals.time.part('startup'))} before the first batch{named}",
            f"{format_seconds(signals.step.warm_up_seconds)} more in the first steps",
        ),
        Fix("pack the dataset (no listing), keep the data near, train longer in one go; compile only for long runs"),
        Interval(saved, saved * 0.5, seconds),
    )
