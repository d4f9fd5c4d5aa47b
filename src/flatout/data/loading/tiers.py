"""Which tier keeps decoded samples: chosen by size, budget and what filling it costs, and said."""

from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from flatout.cache.arena import disk_arena, memory_arena
from flatout.data.loading.fill_costs import SampleCosts, fill_or_not, probe_samples
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.proven import drop_unproven
from flatout.data.loading.sample_cache import SampleCache
from flatout.errors import ConfigError, NoSpace
from flatout.machine.budgets import cache_folder, disk_budget_bytes, kept_bytes, memory_budget_bytes
from flatout.units import format_bytes

_MARGIN = 1.1  # for images that may be of several sizes, of which a few were looked at


@dataclass(frozen=True)
class Chosen:
    """A cache or none, and a sentence that says why."""

    store: SampleCache | None
    note: str
    memory_bytes: int = 0
    tier: str = "off"
    possible: bool = True  # False where no setting of data.cache would give one
    fits: str | None = None  # the tier with room for everything; None where nobody looked, or there is none
    costs: SampleCosts | None = None

    def to_dict(self, wanted: str, epochs: int | None) -> dict[str, Any]:
        """For the run's resolved.json: what was decided and the figures behind it. Seconds are of one sample on one
        core; `pays_after_epochs` is null where it was not measured, and where filling never pays."""
        pays = None if self.costs is None else self.costs.pays_after_epochs()
        figures = {"crop_seconds": None, "fill_seconds": None, "kept_seconds": None}
        return {
            "wanted": wanted,
            "tier": self.tier,
            "reason": self.note.removeprefix("cache: "),
            "epochs": epochs,
            "possible": self.possible,
            "fits": self.fits,
            **(figures if self.costs is None else asdict(self.costs)),
            "pays_after_epochs": pays if pays is not None and isfinite(pays) else None,
        }


def choose_cache(
    wanted: str, recipe: BatchPlan, worker_kind: str, memory_bytes: int | None = None, epochs: int | None = None
) -> Chosen:
    """`auto` takes memory where all decoded samples fit (in `memory_bytes`, by default half of what is free), else
    disk where they fit, else none; and none where filling it would not pay in the `epochs` to come."""
    if recipe.view.decode == "scaled":
        return _without_cache(wanted, recipe)
    if wanted == "off":
        return Chosen(None, "cache: off (data.cache)")
    if recipe.split.shapes(np.zeros(1, np.int64)) is not None:
        return Chosen(None, "cache: not needed, the pack is decoded", possible=False)
    if worker_kind == "process":
        return Chosen(None, "cache: off, worker processes do not share one (data.worker_kind)", possible=False)
    probed = probe_samples(recipe, with_costs=wanted == "auto" and (epochs is None or epochs > 1))
    needed = int(probed.decoded_bytes * len(recipe.split) * (1.0 if probed.one_size else _MARGIN))
    folder = cache_folder() / f"decoded-{recipe.split.storage_key()}"
    on_disk = kept_bytes(folder)
    memory = memory_budget_bytes() if memory_bytes is None else memory_bytes
    disk = disk_budget_bytes(cache_folder()) + on_disk
    if wanted == "auto":
        fits = "memory" if needed <= memory else "disk" if needed <= disk else None
        if fits is None:
            return Chosen(None, f"cache: off, {format_bytes(needed)} of decoded samples fit neither memory nor disk")
        fills, why = fill_or_not(probed.costs, epochs)
        if not fills and not (fits == "disk" and on_disk):  # what an earlier run left costs nothing
            return Chosen(None, f"cache: off, {why}", fits=fits, costs=probed.costs)
        return replace(_opened(fits, recipe, needed, memory, disk, f"; {why}"), fits=fits, costs=probed.costs)
    return _opened(wanted, recipe, needed, memory, disk, "")


def _without_cache(wanted: str, recipe: BatchPlan) -> Chosen:
    """Of a scaled view: what is decoded already was decoded exactly, and gives other pixels."""
    view = recipe.view.name
    if recipe.split.shapes(np.zeros(1, np.int64)) is not None:
        raise ConfigError(f"view {view!r} has decode: scaled but the pack holds decoded images; use decode: exact")
    if wanted in ("memory", "disk"):
        raise ConfigError(f"cache is {wanted} but view {view!r} has decode: scaled, of which no two crops share pixels")
    return Chosen(
        None, f"cache: off, view {view} has decode: scaled and a cache keeps whole, exact images", possible=False
    )


def _opened(tier: str, recipe: BatchPlan, needed: int, memory: int, disk: int, why: str) -> Chosen:
    rows = int(recipe.split.rows.max(initial=-1)) + 1
    if tier == "memory":
        capacity = min(needed, memory)
        fits = "all" if capacity == needed else f"{100 * capacity / needed:.0f} % of the"
        note = f"cache: {fits} decoded samples in memory ({format_bytes(capacity)}){why}"
        return Chosen(SampleCache(memory_arena(rows, capacity)), note, capacity, tier)
    folder = cache_folder() / f"decoded-{recipe.split.storage_key()}"
    try:
        store = SampleCache(disk_arena(folder, rows, min(needed, disk)))
    except NoSpace as error:
        return Chosen(None, f"cache: off, {error}")
    dropped = drop_unproven(store.arena, folder, recipe.split.origins.locators)
    changed = f"; {dropped} of an earlier run are of files that may have changed, and are made anew" if dropped else ""
    return Chosen(store, f"cache: decoded samples in {folder}{changed}{why}", tier=tier)
