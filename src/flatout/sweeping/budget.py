"""What a sweep may take, in time or money, and what it has taken."""

import re
from dataclasses import dataclass

from flatout.errors import ConfigError
from flatout.units import format_seconds, format_usd, parse_seconds

_USD = r"\s*(?:\$\s*([0-9.]+)|([0-9.]+)\s*(?:usd|\$))\s*"


@dataclass(frozen=True)
class Budget:
    """A limit in seconds, or in dollars."""

    seconds: float | None = None
    usd: float | None = None

    def seconds_at(self, usd_per_hour: float | None) -> float | None:
        """How long the sweep may take; None for as long as it needs."""
        if self.usd is None:
            return self.seconds
        if not usd_per_hour:
            raise ConfigError(
                f"--budget is {format_usd(self.usd)} but the recipe has no price; set cost.instance or "
                "cost.usd_per_hour, or give a budget in minutes"
            )
        return 3600 * self.usd / usd_per_hour

    def __str__(self) -> str:
        return format_usd(self.usd) if self.usd is not None else format_seconds(self.seconds)


def parse_budget(text: str | None) -> Budget:
    """`30min`, `2h`, `5usd` or `$5`; None is no limit."""
    if text is None:
        return Budget()
    money = re.fullmatch(_USD, text.lower())
    try:
        amount = float(money[1] or money[2]) if money else parse_seconds(text)
    except (ValueError, ConfigError):
        amount = 0.0
    if amount <= 0 or text.strip().replace(".", "").isdigit():
        raise ConfigError(f"--budget is {text!r}; write a time or a sum, for example 30min, 2h or 5usd")
    return Budget(usd=amount) if money else Budget(seconds=amount)
