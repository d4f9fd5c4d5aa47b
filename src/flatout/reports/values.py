"""A value of summary.json or of a recipe as people read it; its key says what it is."""

import json
from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from flatout.units import format_bits_per_second, format_bytes, format_seconds, format_usd

_SHARES = ("top1", "top5", "busy_fraction", "utilization_mean", "cpu_mean")


def grid(rows: Iterable[tuple[str, Text]], room: int = 3) -> Table:
    """Names, dim, and beside them what they stand for; `room` cells between the two."""
    drawn = Table.grid(padding=(0, room))
    for name, value in rows:
        drawn.add_row(Text(name, style="dim"), value)
    return drawn


def write_value(key: str, value: Any) -> str:
    """The last part of the dotted `key` says quantity and unit; n/a for None."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _write_number(key.split("."), value)
    return value if isinstance(value, str) else json.dumps(value)


def _write_number(parts: list[str], value: float) -> str:
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
