"""Bytes, seconds, bits per second and dollars: parse what people write, format what people read."""

import math
import re
from typing import Any

from flatout.errors import ConfigError

_BYTE_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BIT_RATE_FACTORS = {"bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9}
_SECOND_FACTORS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z/]*)\s*"


def _scale(value: Any, what: str, factors: dict[str, int] | dict[str, float]) -> int | float:
    """A plain number as it is, a number with a unit times its factor; anything else is the user's mistake."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    match = re.fullmatch(_NUMBER_AND_UNIT, value) if isinstance(value, str) else None
    unit = match.group(2) if match else ""
    if "B/s" not in unit and "Bps" not in unit:  # bytes per second are not bits per second
        unit = unit.lower().replace("bit/s", "bps").replace("b/s", "bps")
    if match is None or unit not in factors or not math.isfinite(float(match.group(1)) * factors[unit]):
        raise ConfigError(f"{value!r} is not {what}; write for example {_example(what)}")
    return float(match.group(1)) * factors[unit]


def _example(what: str) -> str:
    return {"a size in bytes": "200 MB or 1.5 GiB", "a duration": "90 s, 5 min or 2 h"}.get(what, "100 Mbps or 1 Gbps")


def parse_bytes(text: str | int | float) -> int:
    """`200 MB` (decimal) or `1.5 GiB` (binary) as bytes."""
    return round(_scale(text, "a size in bytes", _BYTE_FACTORS))


def parse_seconds(text: str | int | float) -> float:
    """`90`, `5 min`, `2h` as seconds."""
    return float(_scale(text, "a duration", _SECOND_FACTORS))


def parse_bits_per_second(text: str | int | float) -> float:
    """`100 Mbps`, `1 Gb/s` as bits per second."""
    return float(_scale(text, "a bit rate", _BIT_RATE_FACTORS))


def format_bytes(count: float | None) -> str:
    """Decimal units, three significant digits: `38.5 MB`."""
    return "n/a" if count is None else _scaled(float(count), "B", 1000.0)


def format_bits_per_second(rate: float | None) -> str:
    return "n/a" if rate is None else _scaled(rate, "b/s", 1000.0)


def _scaled(value: float, unit: str, step: float) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < step * 0.9995 or prefix == "T":
            break
        value /= step
    whole = not prefix or abs(value) >= step * 0.9995
    return f"{value:.0f} {prefix}{unit}" if whole else f"{value:.3g} {prefix}{unit}"


def format_seconds(seconds: float | None) -> str:
    """`850 ms`, `12.3 s`, `4 min 05 s`, `2 h 03 min`; n/a for what has no end."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_usd(dollars: float | None) -> str:
    """Cents for ordinary sums, more digits for sums below a dollar."""
    if dollars is None:
        return "n/a"
    return f"${dollars:,.2f}" if abs(dollars) >= 1 or dollars == 0 else f"${dollars:.4f}"


def format_share(part: float | None, whole: float | None) -> str:
    """A percentage with one decimal, or n/a where it has no meaning."""
    return "n/a" if part is None or not whole else f"{100 * part / whole:.1f} %"
