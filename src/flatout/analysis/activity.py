"""What a run did when: one pass over its span file gives the ledger by epoch, an overview and a few close looks.

Memory stays bounded however long the run was: the overview has at most 2 x BINS stretches, which double in length
whenever the run outgrows them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatout.analysis.epoch_ledger import EpochLedger
from flatout.runs.steps import StepRow
from flatout.timeline.reading import AttemptStart, SpanRow, read_spans

BINS = 240
_CLOSE_STEPS = 4
_MOST_ROWS = 600  # in one close look


class Overview:
    """Sums over stretches of equal length; keys are lane and name."""

    def __init__(self) -> None:
        self.bin_seconds = 0.25
        self.sums: dict[tuple[str, str], dict[int, float]] = {}
        self.readings: dict[str, dict[int, tuple[float, int]]] = {}
        self.end = 0.0

    def add(self, lane: str, name: str, start: float, seconds: float, busy: float) -> None:
        """`busy` seconds, spread evenly from `start` on."""
        self._reach(start + seconds)
        bins = self.sums.setdefault((lane, name), {})
        first, last = int(start / self.bin_seconds), int((start + seconds) / self.bin_seconds)
        for number in range(first, last + 1):
            low, high = max(start, number * self.bin_seconds), min(start + seconds, (number + 1) * self.bin_seconds)
            share = (high - low) / seconds if seconds > 0 else 1.0
            bins[number] = bins.get(number, 0.0) + share * busy

    def read(self, name: str, at: float, value: float) -> None:
        self._reach(at)
        bins = self.readings.setdefault(name, {})
        total, count = bins.get(int(at / self.bin_seconds), (0.0, 0))
        bins[int(at / self.bin_seconds)] = (total + value, count + 1)

    def _reach(self, end: float) -> None:
        self.end = max(self.end, end)
        while self.end > 2 * BINS * self.bin_seconds:
            self.bin_seconds *= 2
            self.sums = {key: _halved(bins) for key, bins in self.sums.items()}
            self.readings = {key: _halved_readings(bins) for key, bins in self.readings.items()}

    @property
    def count(self) -> int:
        return max(1, -int(-self.end // self.bin_seconds))

    def main_thread(self) -> list[dict[str, float]]:
        """Share of every part in every stretch; each adds up to 1."""
        shares: list[dict[str, float]] = []
        for number in range(self.count):
            length = min(self.bin_seconds, self.end - number * self.bin_seconds)
            parts = {name: bins[number] for (lane, name), bins in self.sums.items() if not lane and number in bins}
            whole = max(length, sum(parts.values())) or 1.0
            parts["unattributed"] = parts.get("unattributed", 0.0) + whole - sum(parts.values())
            shares.append({name: seconds / whole for name, seconds in parts.items()})
        return shares

    def lanes(self) -> dict[str, list[float]]:
        """How busy every parallel lane was, as a share of every stretch."""
        found: dict[str, list[float]] = {}
        for (lane, _), bins in self.sums.items():
            if lane:
                busy = found.setdefault(lane, [0.0] * self.count)
                for number, seconds in bins.items():
                    busy[min(number, self.count - 1)] += seconds / self.bin_seconds
        return found

    def values(self) -> dict[str, list[tuple[float, float | None]]]:
        """Means of every reading over time, in seconds."""
        return {
            name: [((n + 0.5) * self.bin_seconds, total / count) for n, (total, count) in sorted(bins.items())]
            for name, bins in self.readings.items()
        }


def _halved(bins: Mapping[int, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for number, value in bins.items():
        found[number // 2] = found.get(number // 2, 0.0) + value
    return found


def _halved_readings(bins: Mapping[int, tuple[float, int]]) -> dict[int, tuple[float, int]]:
    found: dict[int, tuple[float, int]] = {}
    for number, (total, count) in bins.items():
        before = found.get(number // 2, (0.0, 0))
        found[number // 2] = (before[0] + total, before[1] + count)
    return found


@dataclass
class CloseLook:
    """Every row of a few steps; times from the start of their attempt."""

    title: str
    attempt: int
    first_step: int
    last_step: int
    rows: list[SpanRow] = field(default_factory=list)

    def extent(self) -> tuple[float, float]:
        main = [row for row in self.rows if not row.lane]
        return min(row.start for row in main), max(row.start + row.seconds for row in main)


@dataclass(frozen=True)
class Activity:
    """All that a report shows of one rank's span file."""

    ledger: EpochLedger
    overview: Overview
    looks: list[CloseLook]
    attempts: list[tuple[int, float]]  # number, and where it begins on the overview's axis


def no_activity() -> Activity:
    """Of a run whose spans are not looked at."""
    return Activity(EpochLedger(()), Overview(), [], [])


def read_activity(path: Path, steps: Sequence[StepRow]) -> Activity:
    """One pass over a rank's span file; `steps` are those that count."""
    ledger, overview, looks = EpochLedger(steps), Overview(), _choose_looks(steps)
    attempts: list[tuple[int, float]] = []
    origin, attempt = 0.0, 0
    waits: list[SpanRow] = []  # for data: shown with the step they are for
    lanes: list[list[SpanRow]] = [[] for _ in looks]
    for row in read_spans(path):
        if isinstance(row, AttemptStart):
            ledger.start_attempt()
            origin, attempt = overview.end, row.attempt
            attempts.append((attempt, origin))
        elif row.value is not None:
            overview.read(f"{row.lane} {row.name}", origin + row.start, row.value)
        elif row.lane:
            overview.add(row.lane, row.name, origin + row.start, row.seconds, row.seconds)
            _keep_near(lanes, looks, attempt, row)
        else:
            ledger.add(row)
            overview.add("", row.name, origin + row.start, row.seconds, row.own)
            waits = _keep_main(looks, attempt, row, waits)
    ledger.finish()
    for look, near in zip(looks, lanes, strict=True):
        if look.rows:
            low, high = look.extent()
            look.rows += [row for row in near if row.start < high and row.start + row.seconds > low][:_MOST_ROWS]
    return Activity(ledger, overview, [look for look in looks if look.rows], attempts)


def _choose_looks(steps: Sequence[StepRow]) -> list[CloseLook]:
    if not steps:
        return []
    places = {"the first steps": 0}
    if len(steps) > 3 * _CLOSE_STEPS:
        places["steps in the middle of the run"] = len(steps) // 2
    looks = []
    for title, place in places.items():
        chosen = [row for row in steps[place : place + _CLOSE_STEPS] if row.attempt == steps[place].attempt]
        looks.append(CloseLook(title, chosen[0].attempt, chosen[0].step, chosen[-1].step))
    return looks


def _keep_main(looks: Sequence[CloseLook], attempt: int, row: SpanRow, waits: list[SpanRow]) -> list[SpanRow]:
    """Add the row to the look it belongs to; returns the waits for data that still wait for their step."""
    if row.spans > 1:  # a sum has no place in time
        return []
    if row.name == "data_wait":
        return [row]
    for look in looks:
        if attempt == look.attempt and look.first_step <= row.step <= look.last_step and len(look.rows) < _MOST_ROWS:
            look.rows += [*waits, row]
    return []


def _keep_near(lanes: list[list[SpanRow]], looks: Sequence[CloseLook], attempt: int, row: SpanRow) -> None:
    """Lanes are written when a worker hands them over, so what overlaps a look may come before it: keep those of the
    steps around it and choose by time at the end."""
    for near, look in zip(lanes, looks, strict=True):
        around = look.first_step - 64 <= row.step <= look.last_step + 64
        if attempt == look.attempt and around and len(near) < 50 * _MOST_ROWS:
            near.append(row)
