"""Which combinations of values are tried: all of them, or some that a seed draws."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any


def combinations(over: Mapping[str, Sequence[Any]]) -> int:
    """How many there are."""
    return math.prod(len(values) for values in over.values())


def draw(over: Mapping[str, Sequence[Any]], most: int, seed: int) -> list[dict[str, Any]]:
    """All combinations where there are at most `most`, else so many different ones; always in the grid's order."""
    count = combinations(over)
    numbers = range(count) if count <= most else sorted(random.Random(seed).sample(range(count), most))
    return [_combination(over, number) for number in numbers]


def _combination(over: Mapping[str, Sequence[Any]], number: int) -> dict[str, Any]:
    """The last key changes first, as in nested loops."""
    picked = {}
    for key, values in reversed(list(over.items())):
        number, at = divmod(number, len(values))
        picked[key] = values[at]
    return {key: picked[key] for key in over}
