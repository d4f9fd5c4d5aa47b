"""A value that is not known exactly: every quantity of the model carries how wrong it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A quantity that is not negative, with the bounds it is expected to stay within."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        return cls(value, value, value)

    @classmethod
    def around(cls, value: float, relative: float) -> Interval:
        """`value` give or take a share of itself."""
        return cls(value, max(0.0, value * (1 - relative)), value * (1 + relative))

    def __add__(self, other: Interval | float) -> Interval:
        other = _interval(other)
        return Interval(self.value + other.value, self.low + other.low, self.high + other.high)

    def __mul__(self, factor: Interval | float) -> Interval:
        factor = _interval(factor)
        return Interval(self.value * factor.value, self.low * factor.low, self.high * factor.high)

    def __truediv__(self, divisor: Interval | float) -> Interval:
        divisor = _interval(divisor)
        return Interval(self.value / divisor.value, self.low / divisor.high, self.high / divisor.low)

    __radd__ = __add__
    __rmul__ = __mul__

    def contains(self, measured: float) -> bool:
        return self.low <= measured <= self.high

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def propagate(function: Callable[[float], float], over: Interval) -> Interval:
    """A monotonic function of an interval."""
    ends = sorted((function(over.low), function(over.high)))
    return Interval(function(over.value), ends[0], ends[1])


def _interval(value: Interval | float) -> Interval:
    return value if isinstance(value, Interval) else Interval.exact(value)


ZERO = Interval.exact(0.0)
