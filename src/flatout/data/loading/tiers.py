"""Which tier keeps decoded samples: what is measured for the choice, and the store that it opens."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flatout.cache.arena import Arena, disk_arena, memory_arena
from flatout.data.loading.fill_costs import probe_samples
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.sample_cache import SampleCache
from flatout.data.source.identity import Words, are_equal
from flatout.decisions.caching import DISK, MEMORY, OFF, CacheChoice, cache_without_looking, choose_tier, needs_costs
from flatout.errors import NoSpace
from flatout.machine.budgets import cache_folder, disk_budget_bytes, kept_bytes, memory_budget_bytes
from flatout.machine.files import write_whole
from flatout.units import format_bytes

_MARGIN = 1.1  # for images that may be of several sizes, of which a few were looked at


@dataclass(frozen=True)
class Chosen:
    """A cache or none, and the choice behind it as it turned out."""

    store: SampleCache | None
    choice: CacheChoice
    memory_bytes: int = 0


def choose_cache(
    wanted: str, recipe: BatchPlan, worker_kind: str, memory_bytes: int | None = None, epochs: int | None = None
) -> Chosen:
    """Look at a few samples and at the room there is (`memory_bytes`, by default half of what is free), and open what
    decisions/caching.py chooses by that."""
    scaled, decoded = recipe.view.decode == "scaled", recipe.split.shapes(np.zeros(1, np.int64)) is not None
    choice = cache_without_looking(wanted, worker_kind, epochs, recipe.view.name, scaled, decoded)
    if choice is not None:
        return Chosen(None, choice)
    probed = probe_samples(recipe, with_costs=needs_costs(wanted, epochs))
    needed = int(probed.decoded_bytes * len(recipe.split) * (1.0 if probed.one_size else _MARGIN))
    memory = memory_budget_bytes() if memory_bytes is None else memory_bytes
    disk, on_disk = (0, 0) if needed <= memory and wanted != DISK else _look_at_disk(recipe)
    choice = choose_tier(wanted, epochs, needed, memory, disk, on_disk, probed.costs)
    return Chosen(None, choice) if choice.value == OFF else _opened(choice, recipe, needed, memory, disk)


def _look_at_disk(recipe: BatchPlan) -> tuple[int, int]:
    """Bytes that the disk may take, and of these, what an earlier run left. Its folder is named by every sample."""
    on_disk = kept_bytes(cache_folder() / f"decoded-{recipe.split.storage_key()}")
    return disk_budget_bytes(cache_folder()) + on_disk, on_disk


def _opened(choice: CacheChoice, recipe: BatchPlan, needed: int, memory: int, disk: int) -> Chosen:
    rows, why = int(recipe.split.rows.max(initial=-1)) + 1, f"; {choice.reason}" if choice.reason else ""
    if choice.value == MEMORY:
        capacity = min(needed, memory)
        fits = "all" if capacity == needed else f"{100 * capacity / needed:.0f} % of the"
        said = f"{fits} decoded samples in memory ({format_bytes(capacity)}){why}"
        return Chosen(SampleCache(memory_arena(rows, capacity)), replace(choice, reason=said), capacity)
    folder = cache_folder() / f"decoded-{recipe.split.storage_key()}"
    try:
        store = SampleCache(disk_arena(folder, rows, min(needed, disk)))
    except NoSpace as error:
        return Chosen(None, choice.failed(error))
    dropped = drop_unproven(store.arena, folder, recipe.split.origins.locators)
    changed = f"; {dropped} of an earlier run are of files that may have changed, and are made anew" if dropped else ""
    return Chosen(store, replace(choice, reason=f"decoded samples in {folder}{changed}{why}"))


_FILE = "locators"  # of the bytes that each row was, or will be, decoded from


def drop_unproven(arena: Arena, folder: Path, locators: Words) -> int:
    """Forget the rows of an arena on disk that another locator, or none, stands for; how many were there.

    The rows are forgotten first: a process that is killed before it wrote the locators does it again.
    """
    now = np.zeros((arena.rows, 2), np.uint64)
    now[: min(len(locators), arena.rows)] = locators[: arena.rows]
    path = folder / _FILE
    unproven = np.flatnonzero(~are_equal(_saved(path, arena.rows), now))
    dropped = int(np.count_nonzero(arena.find(unproven)[1]))
    arena.forget(unproven)
    if len(unproven):
        with suppress(OSError):
            path.unlink(missing_ok=True)  # none is better than an old one
            write_whole(path, now.tobytes())
    return dropped


def _saved(path: Path, rows: int) -> Words:
    with suppress(OSError):
        data = path.read_bytes()
        if len(data) == 16 * rows:
            return np.frombuffer(data, np.uint64).reshape(rows, 2)
    return np.zeros((rows, 2), np.uint64)
