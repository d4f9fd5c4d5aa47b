"""One decision: what the recipe asked for, what it became, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

AUTO = "auto"
T = TypeVar("T")
Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True)
class Choice(Generic[Value]):
    """`reason` is a sentence for people; it never has to be parsed."""

    value: Value
    reason: str
    wanted: Any = None
    """What the recipe says; None where no key of a recipe asks for it."""

    @property
    def was_open(self) -> bool:
        """Whether the recipe left it to flatout."""
        return is_open(self.wanted)


@dataclass(frozen=True)
class Change:
    """A decision that was made anew while training, such as another number of workers."""

    key: str
    """Of a recipe, as in `data.workers`."""
    value: Any
    reason: str


def as_set(key: str, wanted: T) -> Choice[T]:
    """The recipe's own value."""
    return Choice(wanted, f"{key} says so", wanted)


def is_open(wanted: Any) -> bool:
    """Whether a key of a recipe leaves the choice to flatout. Of this room alone: others read what was chosen."""
    return bool(wanted == AUTO)


def unless_open(wanted: T | Literal["auto"]) -> T | None:
    """What a recipe fixes, None where it leaves the choice to flatout: for a prediction of a recipe nobody resolved."""
    return None if wanted == AUTO else wanted  # type: ignore[return-value]
