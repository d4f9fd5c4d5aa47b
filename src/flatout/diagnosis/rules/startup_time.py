"""The run takes long to get going."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_ORDINARY_SECONDS = 3.0  # listing a dataset, building a model, the first step: not worth a word
_WORTH_NAMING = 0.05  # of the start
_ORDINARY_IMPORT_SECONDS = 12.0  # torch on a slow, busy machine


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("startup") + signals.step.warm_up_seconds
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
        Fix(_remedy(signals)),
        Interval(saved, saved * 0.5, seconds),
    )


_REMEDIES = {
    "imports": "what is imported takes the time: train several runs in one process (flatout suite, flatout sweep)",
    "listing": "pack the dataset, whose index is one file: flatout data pack",
    "first_batch": "the first batch takes the time: keep the data near, stage or pack it",
    "device": "the device takes the time to open: train longer in one go",
    "model": "building the model takes the time: compile only for long runs",
}


def _remedy(signals: Signals) -> str:
    """Of what takes the most."""
    parts = {name: seconds for name, seconds in signals.time.startup_parts.items() if name in _REMEDIES}
    largest = max(parts, key=lambda name: parts[name], default=None)
    rest = signals.startup_seconds - sum(parts.values())
    if largest is None or rest > parts[largest]:
        return "it is none of imports, listing, device, model or first batch: look at log.txt before the first step"
    return _REMEDIES[largest]
