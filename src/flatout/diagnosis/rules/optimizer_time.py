"""The optimizer takes more of the step than it should."""

from flatout.diagnosis.finding import Finding, Fix, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.rules.small_batch import find as find_small_batch
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    seconds = signals.net("optimizer") - min(signals.step.warm_up_seconds, signals.net("optimizer"))
    computing = signals.net("forward", "backward") + seconds
    if signals.step.done < 10 or computing <= 0 or seconds <= 0.3 * computing or find_small_batch(signals) is not None:
        return None
    return saving(
        signals,
        "optimizer-time",
        "compute",
        f"The optimizer takes {percent(signals.time.share(seconds))} of the run",
        (
            f"{format_seconds(seconds / signals.step.done)} a step, {percent(seconds / computing)} of the computing; "
            "it does not depend on the batch",
        ),
        Fix("a larger batch makes fewer of these steps; a fused optimizer or fewer averages make them shorter"),
        Interval(seconds * 0.5, seconds * 0.2, seconds * 0.8),
    )
