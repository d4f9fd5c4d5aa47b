"""Reads back what recorders wrote: seconds of every part, over all attempts of a rank."""

import json
from dataclasses import dataclass
from pathlib import Path

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

    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut short by a kill
            if "attempt" in row:
                finish()
                number, started, end, parts = row["attempt"], row["started_unix"], 0.0, {}
            elif "lane" not in row:
                parts[row["name"]] = parts.get(row["name"], 0.0) + row["own"]
                end = max(end, row["start"] + row["seconds"])
    finish()
    return attempts
