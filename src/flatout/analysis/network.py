"""Network use of a run, and whether the time of its steps follows it."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from flatout.runs.steps import StepRow
from flatout.untrusted import number


def network_rates(system: Sequence[Mapping[str, str]], interface: str | None = None) -> list[tuple[float, float]]:
    """Time and bits per second, both ways together, of one interface or of all but loopback."""
    wanted = [name for name in (system[0] if system else ()) if _is_traffic(name, interface)]
    found = []
    for row in system:
        at, seconds = number(row.get("time_unix")), number(row.get("interval_seconds"))
        counts = [count for name in wanted if (count := number(row.get(name))) is not None]
        if at and seconds and counts:
            found.append((at, 8 * sum(counts) / seconds))
    return found


def _is_traffic(column: str, interface: str | None) -> bool:
    if not column.startswith("nic_") or not column.endswith("_bytes"):
        return False
    return column.startswith(f"nic_{interface}_") if interface else not column.startswith("nic_lo_")


def step_times_by_network(steps: Sequence[StepRow], rates: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Bits per second while each step ended, and its seconds; a step without a reading near it is left out."""
    times = [at for at, _ in rates]
    found = []
    for row in steps:
        ended, seconds = row.time_unix, row.step_seconds
        place = bisect_left(times, ended) if ended is not None else len(times)
        if ended is not None and seconds is not None and place < len(times) and times[place] - ended < 5:
            found.append((rates[place][1], seconds))
    return found


def correlation(points: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's r; None for fewer than 10 points or where one side never changes."""
    if len(points) < 10:
        return None
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    xx, yy = (sum((p[i] - mean) ** 2 for p in points) for i, mean in ((0, mean_x), (1, mean_y)))
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    changes = xx > 1e-12 * mean_x**2 * len(points) and yy > 1e-12 * mean_y**2 * len(points)  # more than rounding
    return xy / math.sqrt(xx * yy) if changes else None
