"""The device idles while the training thread does something else: writes records, logs, waits for a tracker."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("other")
    stepping = signals.time.after_start_seconds
    if not signals.step.done or stepping <= 0 or seconds / stepping <= 0.05 or seconds / signals.step.done < 0.004:
        return None
    changes = {} if signals.device.kind != "cuda" or signals.recipe.log_every >= 10 else {"train.log_every": 10}
    return saving(
        signals,
        "host-time",
        "host",
        f"The device is idle for {percent(signals.time.share(seconds))} of the run, while the training thread keeps "
        "records",
        (f"{format_seconds(seconds / signals.step.done)} a step go to logging, records and trackers",),
        Fix(
            "log every tenth step or more rarely, in the background, and keep the run directory on a local disk",
            changes,
        ),
        Interval(seconds * 0.85, seconds * 0.5, seconds),
        cost_seconds=seconds,
    )
