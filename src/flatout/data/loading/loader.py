"""The local batch source: keeps a pool busy a fixed number of batches ahead and hands them over in order."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flatout.cache.sample_log import SampleLog
from flatout.cache.shared_memory import memory_note
from flatout.config.schema import DataConfig
from flatout.data.batch import Batch, Failure, LoadStats, Prepared
from flatout.data.loading.pinned_memory import HostMemory, memory_for
from flatout.data.loading.pools import InlinePool, Key, Pool, ThreadPool
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.loading.process_pool import ProcessPool, worker_bytes
from flatout.data.loading.sample_cache import SampleCache
from flatout.data.loading.staging import is_remote, staged
from flatout.data.loading.tiers import choose_cache
from flatout.data.loading.worker_count import MOST_WORKERS, WorkerControl, workers_for
from flatout.data.pixels.decode import Undecodable, decode_pixels, native
from flatout.data.source.readers import read_source
from flatout.errors import DataError, StorageError, TooManyQuarantined
from flatout.machine.budgets import fit_batches, memory_budget_bytes, usable_cores
from flatout.timeline import Recorder

_MEASUREMENTS, _MEASURED = 3, 4  # times samples that are prepared to choose the number of workers
FETCHERS = 4  # batches of remote samples under way at once


class Loader:
    """A BatchSource over a pool. With `look_ahead`, the end of an epoch already prepares the start of the next."""

    def __init__(
        self,
        recipe: BatchPlan,
        pool: Pool,
        prefetch: int,
        deadline_seconds: float,
        max_quarantine_share: float,
        look_ahead: bool = True,
        recorder: Recorder | None = None,
        control: WorkerControl | None = None,
    ) -> None:
        self.notes: tuple[str, ...] = ()  # what was chosen, and why
        self.resolved: dict[str, Any] = {}
        self.log: SampleLog | None = None
        self.cache: SampleCache | None = None
        self.memory_bytes = 0  # at most, for batches and cache
        self.recipe = recipe
        self.samples = len(recipe.split)
        self.batches_per_epoch = recipe.batches_per_epoch
        self.quarantine: dict[int, Failure] = {}
        self.stages = LoadStats()
        self._pool = pool
        self._prefetch = prefetch
        self._deadline_seconds = deadline_seconds
        self._max_quarantine_share = max_quarantine_share
        self._look_ahead = look_ahead
        self._recorder = recorder
        self._control = control
        self._pending: deque[Key] = deque()

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from index `start` on, each exactly once and in order."""
        if start >= self.batches_per_epoch:
            return
        if self._pending and self._pending[0] != (epoch, start):
            self._pool.forget()
            self._pending.clear()
        self._submit_ahead((epoch, start))
        if self._control is not None:
            self._control.restart()
        for index in range(start, self.batches_per_epoch):
            ready, asked = self._pool.ready(), time.perf_counter()
            if self._recorder is not None:
                self._recorder.value("queue", "depth", ready)
            prepared = self._pool.wait((epoch, index), self._deadline_seconds)
            if self._control is not None and (note := self._control.after_batch(ready, time.perf_counter() - asked)):
                self.notes += (f"{note}, at batch {index} of epoch {epoch}",)
                self._prefetch = self._control.prefetch
                if self._recorder is not None:
                    self._recorder.value("workers", "active", self._control.active_workers)
            self._pending.popleft()
            if self._look_ahead or index + 1 < self.batches_per_epoch:
                self._submit_ahead(_successor((epoch, index), self.batches_per_epoch))
            yield self._checked(prepared)

    @property
    def stage_is_full(self) -> str | None:
        """Why no more samples are staged; None while there is room, and where nothing is staged."""
        return None if self.log is None else self.log.full

    @property
    def pool(self) -> Pool:
        """Who prepares the batches."""
        return self._pool

    def close(self) -> None:
        self._pool.close()
        self.recipe.split.origins.remember()
        if self.log is not None:
            self.log.close()
        if self.cache is not None:
            self.cache.arena.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit_ahead(self, first: Key) -> None:
        key = _successor(self._pending[-1], self.batches_per_epoch) if self._pending else first
        while len(self._pending) < self._prefetch and (key[0] == first[0] or self._look_ahead):
            self._pool.submit(key)
            self._pending.append(key)
            key = _successor(key, self.batches_per_epoch)

    def _checked(self, prepared: Prepared) -> Batch:
        self.stages.add(prepared.stages)
        if prepared.digested is not None:
            self.recipe.split.record(*prepared.digested)
        if self._recorder is not None:
            for work in prepared.work:
                self._recorder.lane(work.worker, work.stage, work.start, work.seconds)
        self.quarantine.update((failure.sample_id, failure) for failure in prepared.failures)
        if len(self.quarantine) > self._max_quarantine_share * self.samples:
            last = next(reversed(self.quarantine.values()))
            raise TooManyQuarantined(
                f"{len(self.quarantine)} of {self.samples} samples cannot be used, more than "
                f"data.max_quarantine_share = {self._max_quarantine_share:g} allows; the last is {last.name!r}: "
                f"{last.reason}"
            )
        batch = as_batch(prepared)
        if self.recipe.world_size > 1 and not self.recipe.whole_batches:
            batch.whole_ids = torch.from_numpy(self.recipe.whole_ids(batch.epoch, batch.index))
        return batch


def _successor(key: Key, batches_per_epoch: int) -> Key:
    epoch, index = key
    return (epoch, index + 1) if index + 1 < batches_per_epoch else (epoch + 1, 0)


def as_batch(prepared: Prepared) -> Batch:
    """Tensors on the same memory."""
    return Batch(
        prepared.epoch,
        prepared.index,
        torch.from_numpy(prepared.images),
        torch.from_numpy(prepared.labels),
        torch.from_numpy(prepared.sample_ids),
        prepared.mix,
        prepared.failures,
        prepared.stages,
    )


def open_loader(
    recipe: BatchPlan,
    config: DataConfig,
    workers: int,
    look_ahead: bool = True,
    device_kind: str = "cpu",
    recorder: Recorder | None = None,
    memory_taken: int = 0,
    epochs: int | None = None,
) -> Loader:
    """A loader with the workers the configuration asks for, and the stage and cache that fit beside `memory_taken` and
    pay in the `epochs` to come, if anybody knows them. Batches for `device_kind` cuda are in pinned memory."""
    kind = choose_kind(config.worker_kind, workers)
    log: SampleLog | None = None
    notes: list[str | None] = []
    if kind != "process":
        split, log, note = staged(recipe.split, config.stage)
        recipe, notes = replace(recipe, split=split), [note]
    elif config.stage != "off" and is_remote(recipe.split):
        notes = ["stage: off, worker processes read the store every epoch (data.worker_kind)"]
    recipe = with_raw_shape(recipe)
    fetchers = FETCHERS if kind == "thread" and is_remote(recipe.split) else 0
    adapts = config.workers == "auto" and kind == "thread"
    most = max(workers, min(MOST_WORKERS, usable_cores())) if adapts else workers
    most_ahead = most if config.memory == "auto" else workers  # a budget is shared with the cache: no more than needed
    wanted = 2 * most_ahead + fetchers if config.prefetch == "auto" else config.prefetch
    own_bytes = workers * worker_bytes(recipe) if kind == "process" else 0
    wanted = 1 if kind == "inline" else wanted
    memory = memory_for(device_kind)
    prefetch, cache_bytes = _fit_memory(config, recipe, wanted, memory_taken + own_bytes, memory)
    cache = choose_cache(config.cache, recipe, kind, cache_bytes, epochs)

    def prefetch_for(active: int) -> int:
        return min(prefetch, 2 * active + fetchers) if config.prefetch == "auto" and kind != "inline" else prefetch

    pool: Pool
    control: WorkerControl | None = None
    if kind == "inline":
        pool = InlinePool(recipe, cache.store, memory)
    elif kind == "thread":
        pool = ThreadPool(recipe, workers, cache.store, fetchers, memory)
        if adapts:
            control = WorkerControl(pool, usable_cores(), most, prefetch_for)
    else:
        pool = ProcessPool(recipe, workers, memory)
        notes.append(memory_note())
    loader = Loader(
        recipe,
        pool,
        prefetch_for(workers),
        config.batch_deadline_seconds,
        config.max_quarantine_share,
        look_ahead,
        recorder,
        control,
    )
    if adapts:
        notes.append(f"workers: {workers} to begin with, up to {most} where batches are waited for and cores are idle")
    loader.notes = tuple(note for note in (*notes, cache.note) if note)
    loader.resolved = {"cache": cache.to_dict(config.cache, epochs)}
    loader.log, loader.cache = log, cache.store
    loader.memory_bytes = own_bytes + (prefetch + 2) * memory.granted_bytes(recipe.largest_bytes()) + cache.memory_bytes
    return loader


def _fit_memory(
    config: DataConfig, recipe: BatchPlan, prefetch: int, taken: int, memory: HostMemory
) -> tuple[int, int]:
    """Batches ahead, and what is left for the cache."""
    batch_bytes = memory.granted_bytes(recipe.largest_bytes())
    if config.memory == "auto":
        pinned_bytes = (prefetch + 2) * batch_bytes if memory.is_pinned else 0  # nobody can swap it out
        return prefetch, max(0, memory_budget_bytes() - taken - pinned_bytes)
    return fit_batches(config.memory - taken, batch_bytes, prefetch)


def choose_kind(wanted: str, workers: int) -> str:
    """Threads scale with the compiled decoder, which works outside the GIL; without it, processes do."""
    if workers == 0:
        return "inline"
    return ("thread" if native is not None else "process") if wanted == "auto" else wanted


def choose_workers(wanted: int | str, device_kind: str, recipe: BatchPlan) -> int:
    """`auto` looks at the cores and at what preparing a few samples takes here."""
    if isinstance(wanted, int):
        return wanted
    if is_remote(recipe.split):  # fetchers do the waiting
        return workers_for(usable_cores(), device_kind, 0.0)
    few = with_raw_shape(replace(recipe, batch_size=_MEASURED, rank=0, world_size=1))  # a slice of few may be none
    space, waits = np.empty(few.shape(0), np.uint8), []
    for index in range(min(_MEASUREMENTS, few.batches_per_epoch)):
        stages = prepare(few, 0, index, space).stages
        waits.append(stages.fetch / max(stages.decode + stages.augment, 1e-6))
    # the least: slow files are slow every time, what is done once (finding all samples of a tar) and others that have
    # the core are not
    return workers_for(usable_cores(), device_kind, min(waits))


def with_raw_shape(recipe: BatchPlan) -> BatchPlan:
    """A raw view takes the size of its images from the first sample that can be decoded."""
    if recipe.view.crop != "raw":
        return recipe
    reason = "it is empty"
    for sample_id in range(len(recipe.split)):
        one = np.array([sample_id])
        shapes = recipe.split.shapes(one)
        if shapes is not None:
            return replace(recipe, raw_shape=(int(shapes[0][0]), int(shapes[0][1])))
        answer = read_source(recipe.split.locate(one)[0])
        if isinstance(answer, StorageError):
            raise answer
        try:
            height, width = decode_pixels(answer).shape[:2]
            return replace(recipe, raw_shape=(height, width))
        except Undecodable as error:
            reason = f"the last sample, {recipe.split.names[sample_id]!r}: {error}"
    raise DataError(f"no sample of the split can be decoded, so a raw view has no size; {reason}")
