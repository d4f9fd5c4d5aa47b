"""A value of summary.json or of a recipe as people read it; its key says what it is."""

import json
from collections.abc import Mapping
from typing import Any

from flatout.runs import Run
from flatout.units import format_bits_per_second, format_bytes, format_seconds, format_usd

_SHARES = ("top1", "top5", "busy_fraction", "utilization_mean", "cpu_mean")


def look_up(run: Run, key: str) -> Any:
    """A dotted key of the run's summary, else of its configuration; `summary.` or `config.` before it says which."""
    room, _, rest = key.partition(".")
    if room in ("summary", "config"):
        return nested(run.summary if room == "summary" else run.config, rest)
    found = nested(run.summary, key)
    return nested(run.config, key) if found is None else found


def nested(values: Any, key: str) -> Any:
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


def write_value(key: str, value: Any) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(key.split("."), value)
    return value if isinstance(value, str) else json.dumps(value)


def _number(parts: list[str], value: float) -> str:
    last = parts[-1]
    if last in _SHARES or last.endswith("_share"):
        return f"{100 * value:.1f} %"
    if "_per_" in last:
        return format_bits_per_second(value) if "bits_per_second" in last else f"{value:,.4g}"
    if last.endswith("bytes"):
        return format_bytes(value)
    if last.endswith("_usd") or last == "usd":
        return format_usd(value)
    if last.endswith("seconds") or "step_seconds" in parts or "parts" in parts:
        return format_seconds(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
