"""Which tier keeps decoded samples: chosen by size and budget, and said."""

from dataclasses import dataclass

import numpy as np

from flatout.cache.arena import disk_arena, memory_arena
from flatout.data.budgets import cache_folder, disk_budget_bytes, kept_bytes, memory_budget_bytes
from flatout.data.decode import Undecodable, decode_pixels
from flatout.data.prepare import Recipe
from flatout.data.readers import read_source
from flatout.data.sample_cache import SampleCache
from flatout.errors import NoSpace, StorageError
from flatout.units import format_bytes

_PROBED = 32  # samples whose size is looked at
_MARGIN = 1.1


@dataclass(frozen=True)
class Chosen:
    """A cache or none, and a sentence that says why."""

    store: SampleCache | None
    note: str
    memory_bytes: int = 0


def choose_cache(wanted: str, recipe: Recipe, worker_kind: str, memory_bytes: int | None = None) -> Chosen:
    """`auto` takes memory where all decoded samples fit (in `memory_bytes`, by default half of what is free), else
    disk where they fit, else none."""
    rows = int(recipe.split.rows.max(initial=-1)) + 1
    if wanted == "off":
        return Chosen(None, "cache: off (data.cache)")
    if recipe.split.shapes(np.zeros(1, np.int64)) is not None:
        return Chosen(None, "cache: not needed, the pack is decoded")
    if worker_kind == "process":
        return Chosen(None, "cache: off, worker processes do not share one (data.worker_kind)")
    needed = _decoded_bytes(recipe)
    memory = memory_budget_bytes() if memory_bytes is None else memory_bytes
    if wanted == "memory" or (wanted == "auto" and needed <= memory):
        capacity = min(needed, memory)
        fits = "all" if capacity == needed else f"{100 * capacity / needed:.0f} % of the"
        return Chosen(
            SampleCache(memory_arena(rows, capacity)),
            f"cache: {fits} decoded samples in memory ({format_bytes(capacity)})",
            capacity,
        )
    folder = cache_folder() / f"decoded-{recipe.split.storage_key()}"
    disk = disk_budget_bytes(cache_folder()) + kept_bytes(folder)
    if wanted == "disk" or (wanted == "auto" and needed <= disk):
        try:
            return Chosen(
                SampleCache(disk_arena(folder, rows, min(needed, disk))), f"cache: decoded samples in {folder}"
            )
        except NoSpace as error:
            return Chosen(None, f"cache: off, {error}")
    return Chosen(None, f"cache: off, {format_bytes(needed)} of decoded samples fit neither memory nor disk")


def _decoded_bytes(recipe: Recipe) -> int:
    """Bytes of all samples decoded, from a few spread over the split."""
    count = len(recipe.split)
    ids = np.unique(np.linspace(0, count - 1, min(count, _PROBED)).astype(np.int64))
    sizes = []
    for source in recipe.split.locate(ids):
        answer = read_source(source)
        if not isinstance(answer, StorageError):
            try:
                sizes.append(decode_pixels(answer).nbytes)
            except Undecodable:
                continue
    same = len(set(sizes)) <= 1  # images of one size need no margin
    return int(np.mean(sizes) * count * (1.0 if same else _MARGIN)) if sizes else 0
