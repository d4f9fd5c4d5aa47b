"""Reads back what recorders wrote: seconds of every part, over all attempts of a rank."""

from dataclasses import dataclass
from pathlib import Path

from flatout.timeline.lanes import Started, read_rows
from flatout.timeline.recorder import PARTS


@dataclass(frozen=True)
class Attempt:
    """One start of the process: its wall clock and the exclusive seconds of every part."""

    number: int
    started_unix: float
    wall_seconds: float
    parts: dict[str, float]


def read_attempts(path: Path) -> list[Attempt]:
    """Attempts in order. For one that was killed, the wall clock ends with its last whole span."""
    attempts: list[Attempt] = []
    number, started, end = 0, 0.0, 0.0
    parts: dict[str, float] = {}

    def finish() -> None:
        if number:
            parts["unattributed"] = max(0.0, end - sum(parts.values()))
            attempts.append(Attempt(number, started, end, {name: parts.get(name, 0.0) for name in PARTS}))

    for row in read_rows(path):
        if isinstance(row, Started):
            finish()
            number, started, end, parts = row.attempt, row.started_unix, 0.0, {}
        elif not row.lane:
            parts[row.name] = parts.get(row.name, 0.0) + row.own
            end = max(end, row.start + row.seconds)
    finish()
    return attempts
