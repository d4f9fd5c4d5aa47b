"""Values of summary.json and of recipes by their dotted keys."""

from collections.abc import Mapping
from typing import Any

from flatout.config.dotted import leaves, nested
from flatout.runs import Run


def look_up(run: Run, key: str) -> Any:
    """A dotted key of the run's summary, else of its configuration; `summary.` or `config.` before it says which."""
    room, _, rest = key.partition(".")
    if room in ("summary", "config"):
        return nested(run.summary if room == "summary" else run.config, rest)
    found = nested(run.summary, key)
    return nested(run.config, key) if found is None else found


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every value by its dotted key."""
    return dict(leaves(values))
