"""One rank is late and all others wait for it."""

import statistics

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def straggler_seconds(signals: Signals) -> float:
    """How much later than the median rank the last one is in each step; 0 where that is under 10 % of it."""
    ranks = signals.ranks
    if ranks is None or len(ranks.arrival_seconds) < 2:
        return 0.0
    late = max(ranks.arrival_seconds) - statistics.median_low(ranks.arrival_seconds)
    return late if late > 0.1 * signals.step.seconds else 0.0


def find(signals: Signals) -> Finding | None:
    late, ranks = straggler_seconds(signals), signals.ranks
    if late <= 0 or ranks is None:
        return None
    rank = ranks.arrival_seconds.index(max(ranks.arrival_seconds))
    return saving(
        signals,
        "straggler",
        "straggler",
        f"Rank {rank} is late: all others wait {format_seconds(late)} for it in every step, "
        f"{percent(signals.time.share(late * signals.step.done))} of the run",
        ("time to the first exchange by rank: " + ", ".join(format_seconds(each) for each in ranks.arrival_seconds),),
        Fix(f"look at the machine of rank {rank} (other processes, clock, disk), replace it or train without it"),
        faster_steps(signals, signals.step.seconds - late, error=0.1),
    )
