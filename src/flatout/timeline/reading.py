"""The one reader of span files (spans/rank<k>.jsonl): rows in file order, and the seconds of each part by attempt."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flatout.timeline.recorder import PARTS
from flatout.untrusted import read_json_lines

_MOST_SECONDS = 1e10  # 300 years: no run is longer


class AttemptStart(NamedTuple):
    """An attempt begins; the rows that follow count their seconds from here."""

    attempt: int
    started_unix: float


class SpanRow(NamedTuple):
    """One span or, with a `value`, one reading."""

    lane: str
    """Empty for the main thread, whose spans add up to the wall clock; else who worked beside it."""
    name: str
    step: int
    """The last step that had begun when the row was written; 0 before the first, and for readings."""
    start: float
    """Seconds since the start of the attempt."""
    seconds: float
    own: float
    """`seconds` less those of spans inside this one."""
    value: float | None
    spans: int = 1
    """More than 1 where a long run summed up short spans: `seconds` is their sum, `start` that of the first."""
    core_wait: float = 0.0
    """Of `own`: seconds for which the thread was ready and had no core."""


def read_spans(path: Path) -> Iterator[AttemptStart | SpanRow]:
    """Rows in file order; none where there is no file. A line cut short by a kill, or of a kind not known here, is
    left out."""
    for values in read_json_lines(path):
        with suppress(ValueError, KeyError, TypeError):
            yield _parse(values)


def _parse(values: dict[str, Any]) -> AttemptStart | SpanRow:
    if "attempt" in values and "name" not in values:
        return AttemptStart(int(values["attempt"]), float(values["started_unix"]))
    lane, start, seconds = str(values.get("lane", "")), float(values["start"]), float(values.get("seconds", 0.0))
    own = float(values.get("own", seconds))
    value = None if values.get("value") is None else float(values["value"])
    if not (0 <= start <= _MOST_SECONDS and 0 <= seconds <= _MOST_SECONDS and abs(own) <= _MOST_SECONDS):
        raise ValueError("not a time since the start of an attempt")
    if value is not None and not math.isfinite(value):
        raise ValueError("not a reading")
    step, spans = int(values.get("step") or 0), int(values.get("count", 1))
    core_wait = min(max(0.0, float(values.get("core_wait", 0.0))), max(0.0, own))
    return SpanRow(lane, str(values["name"]), step, start, seconds, own, value, spans, core_wait)


@dataclass(frozen=True)
class AttemptParts:
    """One start of the process: its wall clock and the exclusive seconds of every part."""

    number: int
    started_unix: float
    wall_seconds: float
    parts: dict[str, float]


def read_attempts(path: Path) -> list[AttemptParts]:
    """Attempts in order. For one that was killed, the wall clock ends with its last whole span."""
    attempts: list[AttemptParts] = []
    start: AttemptStart | None = None
    end, parts = 0.0, dict[str, float]()

    def finish() -> None:
        if start is not None and start.attempt:
            parts["unattributed"] = max(0.0, end - sum(parts.values()))
            attempts.append(AttemptParts(*start, end, {name: max(0.0, parts.get(name, 0.0)) for name in PARTS}))

    for row in read_spans(path):
        if isinstance(row, AttemptStart):
            finish()
            start, end, parts = row, 0.0, {}
        elif not row.lane:
            parts[row.name] = parts.get(row.name, 0.0) + row.own
            end = max(end, row.start + row.seconds)
    finish()
    return attempts
