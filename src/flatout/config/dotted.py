"""Values of nested mappings by their dotted keys."""

from collections.abc import Iterator, Mapping
from typing import Any


def nested(values: Any, key: str) -> Any:
    """The value of a dotted key; None where any part of the way is missing."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key with its value; an empty mapping is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
