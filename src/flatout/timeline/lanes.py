"""Reads a rank's span file row by row: the main thread's spans, work in parallel lanes, and values over time."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from flatout.untrusted import read_json_lines

_MOST_SECONDS = 1e10  # 300 years: no run is longer


class Started(NamedTuple):
    """An attempt begins; the rows that follow count their seconds from here."""

    attempt: int
    started_unix: float


class Row(NamedTuple):
    """One span (`own` less than `seconds` where spans are inside it) or, with a `value`, one reading."""

    lane: str  # empty for the main thread
    name: str
    step: int
    start: float
    seconds: float
    own: float
    value: float | None
    spans: int = 1  # more where a long run summed up short spans: `seconds` is their sum, `start` that of the first


def read_rows(path: Path) -> Iterator[Started | Row]:
    """Rows in file order. A line cut short by a kill, or of a kind not known here, is left out."""
    for values in read_json_lines(path):
        with suppress(ValueError, KeyError, TypeError):
            yield _row(values)


def _row(values: dict[str, Any]) -> Started | Row:
    if "attempt" in values and "name" not in values:
        return Started(int(values["attempt"]), float(values["started_unix"]))
    lane, start, seconds = str(values.get("lane", "")), float(values["start"]), float(values.get("seconds", 0.0))
    if not 0 <= start <= _MOST_SECONDS or not 0 <= seconds <= _MOST_SECONDS:
        raise ValueError("not a time since the start of an attempt")
    own = float(values.get("own", seconds) if lane else values["own"])
    value = values.get("value")
    return Row(
        lane, str(values["name"]), int(values.get("step") or 0), start, seconds, own,
        None if value is None else float(value), int(values.get("count", 1)),
    )  # fmt: skip
