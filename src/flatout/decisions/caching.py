"""Where samples are kept: remote files on local disk (stage), decoded samples in memory or on disk (cache)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from flatout.decisions.choice import is_open
from flatout.errors import ConfigError
from flatout.units import format_bytes, format_seconds

ASSUMED_EPOCHS = 3  # of a job that does not say: filling must have paid by then
DECODED_EACH_EPOCH, FILLING, KEPT = "crop_seconds", "fill_seconds", "kept_seconds"
"""What a sample costs whoever prepares it: no cache, the epoch that fills one, and later epochs."""
_PLAUSIBLE_SECONDS = 1e-9, 1e4  # of one sample
_FIGURES = (DECODED_EACH_EPOCH, FILLING, KEPT, "pays_after_epochs")
OFF, DISK, MEMORY, SERVICE = "off", "disk", "memory", "service"
"""SERVICE: producers of shared batches decide for themselves, on their own machine."""


@dataclass(frozen=True)
class SampleCosts:
    """Seconds that one sample takes one core: reading it and decoding what its crop shows; reading it, decoding and
    keeping all of it; and taking a crop of what is kept."""

    crop_seconds: float
    fill_seconds: float
    kept_seconds: float

    def pays_after_epochs(self) -> float:
        """From how many epochs on filling takes less time in all; infinite where it never does."""
        gain, extra = self.crop_seconds - self.kept_seconds, self.fill_seconds - self.crop_seconds
        return 1 + max(0.0, extra) / gain if gain > 0 else float("inf")


@dataclass(frozen=True)
class StageChoice:
    """Whether remote files are copied to local disk while the first epoch trains."""

    value: str
    """off, disk, or service."""
    reason: str
    wanted: str
    remote: bool

    @property
    def note(self) -> str | None:
        """For the log of a run; None where there is nothing to say."""
        if is_off(self.wanted) or not self.remote:
            return None
        return f"stage: off, {self.reason}" if self.value == OFF else f"stage: {self.reason}"

    def failed(self, error: Exception) -> StageChoice:
        """The disk refused what was chosen."""
        return replace(self, value=OFF, reason=str(error))


def is_off(wanted: str) -> bool:
    return wanted == OFF


def stage_without_looking(wanted: str, remote: bool, pool: str) -> StageChoice | None:
    """The answer that needs no look at the disk; None where it does."""
    if not remote:
        return StageChoice(OFF, "the data is on this machine", wanted, remote)
    if is_off(wanted):
        return StageChoice(OFF, "data.stage says so", wanted, remote)
    if pool == "process":
        return StageChoice(OFF, "worker processes read the store every epoch (data.worker_kind)", wanted, remote)
    return None


def choose_stage(wanted: str, needed_bytes: int, kept_bytes: int, free_bytes: int, folder: Path) -> StageChoice:
    """Of remote data: a copy where it fits beside what is there already. Bytes are those on disk."""
    if needed_bytes - kept_bytes > free_bytes:
        reason = f"{format_bytes(needed_bytes)} do not fit the {format_bytes(free_bytes)} to spare on disk"
        return StageChoice(OFF, reason, wanted, True)
    return StageChoice(DISK, f"{format_bytes(needed_bytes)} to {folder}", wanted, True)


@dataclass(frozen=True)
class CacheChoice:
    """Whether decoded samples are kept, with the figures behind it. Seconds are of one sample on one core."""

    wanted: str
    """data.cache of the recipe."""
    value: str
    """memory, disk, off, or service."""
    reason: str = ""
    possible: bool = True
    """False where no setting of data.cache would give a cache."""
    fits: str | None = None
    """The tier that had room for everything; None where nobody looked, or there is none."""
    crop_seconds: float | None = None
    fill_seconds: float | None = None
    kept_seconds: float | None = None
    pays_after_epochs: float | None = None
    """None where it was not measured, and where filling never pays."""
    epochs: int | None = None
    """To come, when this was decided; None where nobody knew."""

    @classmethod
    def from_dict(cls, values: Any) -> CacheChoice | None:
        """None where there is no such entry, or one of another kind. Runs before this room existed wrote `tier`."""
        if not isinstance(values, Mapping):
            return None
        given = {"value": values.get("tier"), **values}
        if not all(isinstance(given.get(key), str) for key in ("wanted", "value")) or given["value"] == SERVICE:
            return None
        known = {name: value for name, value in given.items() if name in {each.name for each in fields(cls)}}
        numbers = [known.get(name) for name in (*_FIGURES, "epochs")]
        if not all(each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in numbers):
            return None
        if not isinstance(known.get("possible", True), bool) or not isinstance(known.get("reason", ""), str):
            return None
        return cls(**known) if isinstance(known.get("fits"), str | None) else None

    @property
    def note(self) -> str:
        """For the log of a run."""
        return f"cache: {self.reason}"

    @property
    def declined(self) -> bool:
        """The loader itself decided against a cache: advice to set one would be against what it measured."""
        return self.value == OFF and (self.wanted != OFF or not self.possible)

    @property
    def is_measured(self) -> bool:
        """All three, and none by a file that was damaged: their ratios are counted on."""
        least, most = _PLAUSIBLE_SECONDS
        return all(
            least < (seconds or 0.0) < most for seconds in (self.crop_seconds, self.fill_seconds, self.kept_seconds)
        )

    def seconds(self, state: str) -> float:
        """Of one sample in one of the states above; only where `is_measured`."""
        return float(getattr(self, state))

    def tier_for(self, wanted: str, epochs: int) -> str:
        """What would be chosen for the same job with so many epochs; `auto` where nobody has weighed it yet."""
        if not self.possible or not (is_open(wanted) and is_open(self.wanted)):
            return wanted if self.possible else OFF
        if self.value == DISK:
            return DISK  # what an earlier run left costs nothing
        if self.fits is None or epochs <= 1:
            return OFF
        if not self.is_measured:
            return self.value
        pays = math.inf if self.pays_after_epochs is None else self.pays_after_epochs
        return self.fits if pays < epochs else OFF

    def failed(self, error: Exception) -> CacheChoice:
        """The disk refused what was chosen."""
        return replace(self, value=OFF, reason=f"off, {error}")


def cache_without_looking(
    wanted: str, pool: str, epochs: int | None, view: str, scaled: bool, is_decoded: bool
) -> CacheChoice | None:
    """The answer that needs no sample to be read; None where it does. `scaled`: of the view `view` no two crops share
    pixels. `is_decoded`: the pack holds pixels already."""
    if scaled and is_decoded:
        raise ConfigError(f"view {view!r} has decode: scaled but the pack holds decoded images; use decode: exact")
    if scaled and wanted in (MEMORY, DISK):
        raise ConfigError(f"cache is {wanted} but view {view!r} has decode: scaled, of which no two crops share pixels")
    never = CacheChoice(wanted, OFF, epochs=epochs, possible=False)
    if scaled:
        return replace(never, reason=f"off, view {view} has decode: scaled and a cache keeps whole, exact images")
    if is_off(wanted):
        return CacheChoice(wanted, OFF, "off (data.cache)", epochs=epochs)
    if is_decoded:
        return replace(never, reason="not needed, the pack is decoded")
    if pool == "process":
        return replace(never, reason="off, worker processes do not share one (data.worker_kind)")
    return None


def needs_costs(wanted: str, epochs: int | None) -> bool:
    """Whether the choice depends on what filling a cache would cost: measuring takes a moment."""
    return is_open(wanted) and (epochs is None or epochs > 1)


def choose_tier(
    wanted: str,
    epochs: int | None,
    needed_bytes: int,
    memory_bytes: int,
    disk_bytes: int,
    on_disk_bytes: int,
    costs: SampleCosts | None,
) -> CacheChoice:
    """`auto` takes memory where all decoded samples fit, else disk where they fit, else none; and none where filling it
    would not pay in the `epochs` to come. `disk_bytes` counts the `on_disk_bytes` that an earlier run left."""
    if not is_open(wanted):
        return CacheChoice(wanted, wanted, epochs=epochs)
    fits = MEMORY if needed_bytes <= memory_bytes else DISK if needed_bytes <= disk_bytes else None
    if fits is None:
        reason = f"off, {format_bytes(needed_bytes)} of decoded samples fit neither memory nor disk"
        return CacheChoice(wanted, OFF, reason, epochs=epochs)
    fills, why = fill_or_not(costs, epochs)
    found = with_costs(CacheChoice(wanted, fits, why, fits=fits, epochs=epochs), costs)
    if not fills and not (fits == DISK and on_disk_bytes):  # what an earlier run left costs nothing
        return replace(found, value=OFF, reason=f"off, {why}")
    return found


def with_costs(choice: CacheChoice, costs: SampleCosts | None) -> CacheChoice:
    if costs is None:
        return choice
    pays = costs.pays_after_epochs()
    return replace(choice, **vars(costs), pays_after_epochs=pays if math.isfinite(pays) else None)


def fill_or_not(costs: SampleCosts | None, epochs: int | None) -> tuple[bool, str]:
    """Whether to fill a cache that has room for everything, and why; `epochs` are those still to come, if known."""
    if epochs is not None and epochs <= 1:
        return False, "the run has one epoch and needs each sample once"
    if costs is None:
        return True, "samples are decoded whole anyway"
    expected = (
        f"{format_seconds(costs.fill_seconds)} a sample and core in the first epoch and "
        f"{format_seconds(costs.kept_seconds)} then, {format_seconds(costs.crop_seconds)} without"
    )
    pays = costs.pays_after_epochs()
    least = "never pays" if pays == float("inf") else f"pays after {pays:.2g} epochs"
    known = f"the run has {epochs}" if epochs is not None else f"{ASSUMED_EPOCHS} are assumed"
    return pays < (ASSUMED_EPOCHS if epochs is None else epochs), f"{least}, {known}: {expected}"
