"""The local batch source: keeps a pool busy a fixed number of batches ahead and hands them over in order."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

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
from flatout.data.loading.worker_count import WorkerControl
from flatout.data.pixels.decode import Undecodable, decode_pixels, native
from flatout.data.source.readers import read_source
from flatout.decisions import Change, Choice
from flatout.decisions import loading as decisions
from flatout.decisions.loading import DataDecisions, PoolChoice
from flatout.errors import DataError, StorageError, TooManyQuarantined
from flatout.machine.budgets import memory_budget_bytes, usable_cores
from flatout.timeline import Recorder

_MEASUREMENTS, _MEASURED = 3, 4  # times samples that are prepared to choose the number of workers


@dataclass(eq=False, repr=False)
class Loader:
    """A BatchSource over a pool. With `look_ahead`, the end of an epoch already prepares the start of the next."""

    recipe: BatchPlan
    pool: Pool  # who prepares the batches
    prefetch: int
    deadline_seconds: float
    max_quarantine_share: float
    look_ahead: bool = True
    recorder: Recorder | None = None
    control: WorkerControl | None = None
    notes: tuple[str, ...] = ()  # what was chosen, and why
    decided: DataDecisions | None = None
    changes: list[Change] = field(default_factory=list)  # of what was decided, while it runs
    log: SampleLog | None = None
    cache: SampleCache | None = None
    memory_bytes: int = 0  # at most, for batches and cache

    def __post_init__(self) -> None:
        self.samples = len(self.recipe.split)
        self.batches_per_epoch = self.recipe.batches_per_epoch
        self.quarantine: dict[int, Failure] = {}
        self.stages = LoadStats()
        self._pending: deque[Key] = deque()

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from index `start` on, each exactly once and in order."""
        if start >= self.batches_per_epoch:
            return
        if self._pending and self._pending[0] != (epoch, start):
            self.pool.forget()
            self._pending.clear()
        self._submit_ahead((epoch, start))
        if self.control is not None:
            self.control.restart()
        for index in range(start, self.batches_per_epoch):
            ready, asked = self.pool.ready(), time.perf_counter()
            if self.recorder is not None:
                self.recorder.value("queue", "depth", ready)
            prepared = self.pool.wait((epoch, index), self.deadline_seconds)
            if self.control is not None and (note := self.control.after_batch(ready, time.perf_counter() - asked)):
                self.prefetch = self.control.prefetch
                self._note_change(f"{note}, at batch {index} of epoch {epoch}", self.control)
                if self.recorder is not None:
                    self.recorder.value("workers", "active", self.control.active_workers)
            self._pending.popleft()
            if self.look_ahead or index + 1 < self.batches_per_epoch:
                self._submit_ahead(_successor((epoch, index), self.batches_per_epoch))
            yield self._checked(prepared)

    def _note_change(self, note: str, control: WorkerControl) -> None:
        self.notes += (note,)
        self.changes.append(Change("data.workers", control.active_workers, note.removeprefix("workers: ")))
        self.changes.append(Change("data.prefetch", control.prefetch, "follows the number of workers"))

    @property
    def stage_is_full(self) -> str | None:
        """Why no more samples are staged; None while there is room, and where nothing is staged."""
        return None if self.log is None else self.log.full

    def close(self) -> None:
        self.pool.close()
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
        while len(self._pending) < self.prefetch and (key[0] == first[0] or self.look_ahead):
            self.pool.submit(key)
            self._pending.append(key)
            key = _successor(key, self.batches_per_epoch)

    def _checked(self, prepared: Prepared) -> Batch:
        self.stages.add(prepared.stages)
        if prepared.digested is not None:
            self.recipe.split.record(*prepared.digested)
        if self.recorder is not None:
            for work in prepared.work:
                self.recorder.lane(work.worker, work.stage, work.start, work.seconds)
        self.quarantine.update((failure.sample_id, failure) for failure in prepared.failures)
        if len(self.quarantine) > self.max_quarantine_share * self.samples:
            last = next(reversed(self.quarantine.values()))
            raise TooManyQuarantined(
                f"{len(self.quarantine)} of {self.samples} samples cannot be used, more than "
                f"data.max_quarantine_share = {self.max_quarantine_share:g} allows; the last is {last.name!r}: "
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
    workers: int | Choice[int],
    look_ahead: bool = True,
    device_kind: str = "cpu",
    recorder: Recorder | None = None,
    memory_taken: int = 0,
    epochs: int | None = None,
) -> Loader:
    """A loader with so many workers, and the stage and cache that fit beside `memory_taken` and pay in the `epochs` to
    come, if anybody knows them. Batches for `device_kind` cuda are in pinned memory. What was decided is in `decided`.
    """
    chosen = decisions.decide_pool(config, workers, native is not None, is_remote(recipe.split), usable_cores())
    kind, count = chosen.kind.value, chosen.workers.value
    split, log, stage = staged(recipe.split, config.stage, kind)
    recipe = with_raw_shape(replace(recipe, split=split))
    own_bytes = count * worker_bytes(recipe) if kind == "process" else 0
    memory = memory_for(device_kind)
    batch_bytes = memory.granted_bytes(recipe.largest_bytes())
    plan = decisions.fit_memory(
        config.memory, chosen.prefetch, batch_bytes, memory_taken + own_bytes, memory_budget_bytes(), memory.is_pinned
    )
    cache = choose_cache(config.cache, recipe, kind, plan.cache_bytes, epochs)
    prefetch = plan.prefetch.value
    pool, control = _open_pool(recipe, chosen, cache.store, memory, prefetch)
    shm_note = memory_note() if kind == "process" else None
    return Loader(
        recipe,
        pool,
        chosen.prefetch_with(count, prefetch),
        config.batch_deadline_seconds,
        config.max_quarantine_share,
        look_ahead,
        recorder,
        control,
        tuple(note for note in (stage.note, shm_note, _adapts_note(chosen), cache.choice.note) if note),
        decisions.decided_locally(config, chosen, plan, stage, cache.choice),
        log=log,
        cache=cache.store,
        memory_bytes=own_bytes + (prefetch + 2) * batch_bytes + cache.memory_bytes,
    )


def _open_pool(
    recipe: BatchPlan, chosen: PoolChoice, cache: SampleCache | None, memory: HostMemory, prefetch: int
) -> tuple[Pool, WorkerControl | None]:
    """The workers, and who changes their number while they work, where anybody does."""
    if chosen.kind.value == "inline":
        return InlinePool(recipe, cache, memory), None
    if chosen.kind.value == "process":
        return ProcessPool(recipe, chosen.workers.value, memory), None
    pool = ThreadPool(recipe, chosen.workers.value, cache, chosen.fetchers.value, memory)
    if not chosen.adapts:
        return pool, None

    def prefetch_for(active: int) -> int:
        return chosen.prefetch_with(active, prefetch)

    return pool, WorkerControl(pool, usable_cores(), chosen.most_workers.value, prefetch_for)


def _adapts_note(chosen: PoolChoice) -> str | None:
    if not chosen.adapts:
        return None
    first, most = chosen.workers.value, chosen.most_workers.value
    return f"workers: {first} to begin with, up to {most} where batches are waited for and cores are idle"


def choose_workers(wanted: int | str, device_kind: str, recipe: BatchPlan) -> Choice[int]:
    """`auto` looks at the cores and at what preparing a few samples takes here."""
    waits = 0.0 if isinstance(wanted, int) or is_remote(recipe.split) else _waits_per_work(recipe)
    return decisions.choose_workers(wanted, usable_cores(), device_kind, waits)  # of a store, fetchers do the waiting


def _waits_per_work(recipe: BatchPlan) -> float:
    """Seconds of reading a few samples over seconds of decoding them."""
    few = with_raw_shape(replace(recipe, batch_size=_MEASURED, rank=0, world_size=1))  # a slice of few may be none
    space, waits = np.empty(few.shape(0), np.uint8), []
    for index in range(min(_MEASUREMENTS, few.batches_per_epoch)):
        stages = prepare(few, 0, index, space).stages
        waits.append(stages.fetch / max(stages.decode + stages.augment, 1e-6))
    # the least: slow files are slow every time, what is done once (finding all samples of a tar) and others that have
    # the core are not
    return min(waits)


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
