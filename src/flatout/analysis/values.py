"""Values of summary.json and of recipes by their dotted keys."""

from collections.abc import Mapping
from typing import Any

from flatout.runs import Run


def look_up(run: Run, key: str) -> Any:
    """A dotted key of the run's summary, else of its configuration; `summary.` or `config.` before it says which."""
    room, _, rest = key.partition(".")
    if room in ("summary", "config"):
        return nested(run.summary if room == "summary" else run.config, rest)
    found = nested(run.summary, key)
    return nested(run.config, key) if found is None else found


def nested(values: Any, key: str) -> Any:
    """The value of a dotted key; None where any part of the way is missing."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value by its dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping) and value
        found.update(flattened(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value})
    return found
