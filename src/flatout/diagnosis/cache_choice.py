"""What the loader decided about keeping decoded samples, and what the same figures say of another number of epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

DECODED_EACH_EPOCH, FILLING, KEPT = "crop_seconds", "fill_seconds", "kept_seconds"
"""Seconds to prepare one sample: no cache, the epoch that fills one, and later epochs."""


@dataclass(frozen=True)
class CacheChoice:
    """The entry `cache` of resolved.json, as data/loading/tiers.py writes it. Seconds are of one sample on one core."""

    wanted: str
    """data.cache of the recipe."""
    tier: str
    """memory, disk or off."""
    reason: str = ""
    possible: bool = True
    """False where no setting of data.cache would give a cache."""
    fits: str | None = None
    """The tier that had room for everything, where the loader looked."""
    crop_seconds: float | None = None
    fill_seconds: float | None = None
    kept_seconds: float | None = None
    pays_after_epochs: float | None = None
    """None where it was not measured, and where filling never pays."""

    @classmethod
    def from_dict(cls, values: Any) -> CacheChoice | None:
        """None where there is no such entry, or one of another kind."""
        if not isinstance(values, Mapping) or not all(isinstance(values.get(key), str) for key in ("wanted", "tier")):
            return None
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def declined(self) -> bool:
        """The loader itself decided against a cache: advice to set one would be against what it measured."""
        return self.tier == "off" and (self.wanted != "off" or not self.possible)

    @property
    def is_measured(self) -> bool:
        return all(seconds for seconds in (self.crop_seconds, self.fill_seconds, self.kept_seconds))

    def seconds(self, state: str) -> float:
        """Of one sample in one of the states above; only where `is_measured`."""
        return float(getattr(self, state))

    def tier_for(self, wanted: str, epochs: int) -> str:
        """What the loader would choose for a job of so many epochs; `auto` where it was not measured."""
        if not self.possible or wanted != "auto" or self.wanted != "auto":
            return wanted if self.possible else "off"
        if self.tier == "disk":
            return "disk"  # what an earlier run left costs nothing
        if self.fits is None or epochs <= 1:
            return "off"
        if not self.is_measured:
            return self.tier
        pays = math.inf if self.pays_after_epochs is None else self.pays_after_epochs
        return self.fits if pays < epochs else "off"
