"""The model and the run disagree: it must not be trusted with a verdict."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    return _off(signals) or _workers_idle_but_starved(signals)


def _off(signals: Signals) -> Finding | None:
    if not signals.prediction_errors:
        return None
    worst = max(signals.prediction_errors, key=abs)
    if abs(worst) <= 0.15:
        return None
    return Finding(
        "prediction-off",
        None,
        f"A prediction for this run was off by {percent(abs(worst))}",
        ("flatout predict --score lists all predictions",),
        Fix("calibrate anew: flatout probe"),
    )


def _workers_idle_but_starved(signals: Signals) -> Finding | None:
    """The step waits for data although, by what it takes to prepare, workers should be far ahead."""
    if signals.input.workers == 0 or signals.load is None or signals.step.wait_share <= 0.25:
        return None
    possible = max(signals.loading_seconds(signals.input.active_workers), signals.step.own_seconds)
    if possible > 0.5 * signals.step.seconds:
        return None
    return Finding(
        "loading-unexplained",
        "unexplained",
        f"No verdict: {percent(signals.data_wait_share)} of the run waits for data, but what is known of the work "
        f"for a batch explains only {format_seconds(possible)} of {format_seconds(signals.step.seconds)}",
        ("time passes between the workers and the training thread, or in a part of loading that is not measured",),
        Fix("look at the lanes of the workers in trace.json; calibrate: flatout probe"),
        urgent=True,
    )
