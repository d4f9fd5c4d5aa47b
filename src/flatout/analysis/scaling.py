"""What more devices bought: speed-up, efficiency, and whether an epoch became dearer."""

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.analysis.comparability import Side
from flatout.config.dotted import nested


@dataclass(frozen=True)
class Scaling:
    """A run on more devices against the one on fewest."""

    label: str
    devices: int
    speed_up: float
    efficiency: float
    epoch_usd: float | None
    sentence: str


def scaling(sides: Sequence[Side]) -> list[Scaling]:
    """Every run against the one on fewest devices; nothing where all have as many."""
    sized = [(int(side.run.summary.get("world_size") or 1), side) for side in sides]
    fewest, base = min(sized, key=lambda each: each[0])
    return [row for devices, side in sized if devices > fewest and (row := _against(fewest, base, devices, side))]


def _against(fewest: int, base: Side, devices: int, side: Side) -> Scaling | None:
    before, after = (nested(each.run.summary, "throughput.samples_per_second") for each in (base, side))
    if not before or not after:
        return None
    speed_up = after / before
    efficiency = speed_up * fewest / devices
    usd = epoch_usd(side)
    sentence = (
        f"{side.label}: {devices} devices are {speed_up:.2f}x as fast as {fewest} ({100 * efficiency:.0f} % efficiency)"
        f"{_money(epoch_usd(base), usd, fewest)}"
    )
    return Scaling(side.label, devices, speed_up, efficiency, usd, sentence)


def _money(before_usd: float | None, after_usd: float | None, fewest: int) -> str:
    if not before_usd or after_usd is None:
        return ""
    percent = 100 * (after_usd / before_usd - 1)
    if abs(percent) < 0.5:
        return f"; an epoch costs as much as on {fewest}"
    return f"; an epoch costs {abs(percent):.0f} % {'MORE' if percent > 0 else 'less'} than on {fewest}"


def epoch_usd(side: Side) -> float | None:
    """An epoch's share of the bill, by its share of the time: start-up is not in it."""
    total, wall = nested(side.run.summary, "cost.total_usd"), nested(side.run.summary, "time.wall_seconds")
    if total is None or not wall or side.epoch is None:
        return None
    return float(total) * side.epoch.actual_seconds / float(wall)
