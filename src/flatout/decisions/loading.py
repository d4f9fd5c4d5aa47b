"""Who prepares batches, how many of them, how many batches ahead, and in how much memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.decisions.caching import OFF, SERVICE, CacheChoice, StageChoice
from flatout.decisions.choice import AUTO, Choice, as_set, is_open
from flatout.machine.budgets import fit_batches

if TYPE_CHECKING:
    from flatout.config.schema import DataConfig

MOST_WORKERS = 16
_FETCHERS = 4  # batches of remote samples under way at once
_SHARED_PREFETCH = 2  # told to a shared pool, which needs it only when it works alone
_TEXT_WORKERS, _TEXT_PREFETCH = 1, 2  # padding takes no time; one thread hides even that
HERE = "this machine"
"""Batches are shared with other jobs on it."""


def is_url(path: str) -> bool:
    """Whether a dataset's path names an object store. What is mounted from one is remote too: ask the reader."""
    return "://" in path


# Workers


def choose_workers(
    wanted: int | str | Choice[int], cores: int, device_kind: str, waits_per_work: float = 0.0
) -> Choice[int]:
    """`auto` is one beside a CPU that trains, else one for every core; more where workers mostly wait for slow files,
    since a waiting worker needs no core. At most 16. `waits_per_work` is measured: seconds of reading over seconds of
    decoding; 0 where fetchers do the waiting."""
    if isinstance(wanted, Choice):
        return wanted
    if isinstance(wanted, int):
        return as_set("data.workers", wanted)
    busy = 1 if device_kind == "cpu" else max(1, cores)
    slow = waits_per_work > 1
    count = min(MOST_WORKERS, math.ceil(busy * (1 + waits_per_work) if slow else busy))
    why = "one beside a CPU that trains" if device_kind == "cpu" else f"one for each of {max(1, cores)} core(s)"
    why += f", times {1 + waits_per_work:.2g} since reading takes longer than decoding" if slow else ""
    return Choice(count, why + (f", at most {MOST_WORKERS}" if count == MOST_WORKERS else ""), AUTO)


@dataclass(frozen=True)
class Window:
    """What was seen since the last decision on the number of workers."""

    waited_share: float
    """Of the time in which the consumer waited for a batch."""
    least_ready: int
    """Batches that were ready when one was asked for, at the least."""
    busy_share: float
    """Of the workers' time in which they had something to do."""
    idle_cores: float
    """Of those this process may use."""


def adapt_workers(active: int, seen: Window, most: int, starved_with: int) -> int:
    """One more where batches are waited for while workers are busy and cores are not; one fewer where batches pile up
    and no core is left, but never down to `starved_with`, with which batches were waited for before."""
    core_while_waiting = seen.idle_cores > 0.7 * seen.waited_share
    if seen.waited_share > 0.1 and seen.busy_share > 0.8 and core_while_waiting and active < most:
        return active + 1
    piled_up = seen.waited_share < 0.01 and seen.least_ready > active
    return active - 1 if piled_up and seen.idle_cores < 0.1 and active - 1 > starved_with else active


def with_open_worker_options(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a recipe that is valid whatever it says of workers: without any, their options mean nothing."""
    without = {"data.prefetch": AUTO, "data.worker_kind": AUTO} if changes.get("data.workers") == 0 else {}
    return {**changes, **without}


# Pools


def choose_pool(wanted: str, workers: int, compiled_decoder: bool) -> Choice[str]:
    """inline, thread or process. Threads scale with the compiled decoder, which works outside the GIL; without it,
    processes do."""
    if workers == 0:
        return Choice("inline", "without workers the training thread prepares batches itself", wanted)
    if not is_open(wanted):
        return as_set("data.worker_kind", wanted)
    if compiled_decoder:
        return Choice("thread", "the compiled decoder works outside of the interpreter's lock", wanted)
    return Choice("process", "without the compiled decoder threads would wait for the interpreter's lock", wanted)


def choose_fetchers(pool: str, remote: bool) -> Choice[int]:
    """Threads that wait for a store beside the workers."""
    if not remote:
        return Choice(0, "the data is on this machine")
    if pool != "thread":
        return Choice(
            0, "only threads have fetchers: " + ("nobody" if pool == "inline" else "a worker") + " waits aside"
        )
    return Choice(_FETCHERS, "so many batches of remote samples are under way at once")


def orders_in_flight(remote: bool) -> int:
    """Of a producer, beyond its threads: more where time is spent waiting for a store."""
    return _FETCHERS if remote else 1


@dataclass(frozen=True)
class PoolChoice:
    """The workers of one loader."""

    kind: Choice[str]
    """inline, thread or process."""
    workers: Choice[int]
    """To begin with."""
    most_workers: Choice[int]
    fetchers: Choice[int]
    prefetch: Choice[int]
    """Batches ahead that are wanted, before the memory for them is known."""

    @property
    def adapts(self) -> bool:
        """Whether the number of workers changes while running."""
        return self.workers.was_open and self.kind.value == "thread"

    def prefetch_with(self, active: int, most: int) -> int:
        """Batches ahead with so many active workers, of which memory allows `most`."""
        if not self.prefetch.was_open or self.kind.value == "inline":
            return most
        return min(most, 2 * active + self.fetchers.value)


def decide_pool(
    data: DataConfig, workers: int | Choice[int], compiled_decoder: bool, remote: bool, cores: int
) -> PoolChoice:
    """`workers` is what choose_workers gave, or a number of the caller's own."""
    chosen = workers if isinstance(workers, Choice) else Choice(workers, "asked for by the caller", data.workers)
    count = chosen.value
    kind = choose_pool(data.worker_kind, count, compiled_decoder)
    fetchers = choose_fetchers(kind.value, remote)
    most = Choice(count, "their number stays as it is")
    if is_open(data.workers) and kind.value == "thread":
        limit = max(count, min(MOST_WORKERS, cores))
        most = Choice(
            limit, f"where batches are waited for and cores are idle; {cores} core(s), at most {MOST_WORKERS}"
        )
    # a memory budget is shared with the cache: no more batches than needed
    most_ahead = most.value if is_open(data.memory) else count
    if kind.value == "inline":
        ahead = Choice(1, "without workers there is the next batch alone", data.prefetch)
    elif isinstance(data.prefetch, int):
        ahead = as_set("data.prefetch", data.prefetch)
    else:
        each = 2 * most_ahead + fetchers.value
        ahead = Choice(
            each, f"two for each of {most_ahead} worker(s), one for each of {fetchers.value} fetcher(s)", AUTO
        )
    return PoolChoice(kind, Choice(count, chosen.reason, data.workers), most, fetchers, ahead)


# Memory


@dataclass(frozen=True)
class MemoryPlan:
    """Batches ahead, and what is left for a cache."""

    memory: Choice[int | None]
    """Bytes that loading may take; None where nobody limits it."""
    prefetch: Choice[int]
    cache_bytes: int


def fit_memory(
    wanted: int | str, prefetch: Choice[int], batch_bytes: int, taken_bytes: int, budget_bytes: int, is_pinned: bool
) -> MemoryPlan:
    """`budget_bytes` is half of what is free, `taken_bytes` what this run has planned with already. Pinned batches
    count against a budget that nobody set too: they cannot be swapped out."""
    if isinstance(wanted, int):
        kept, left = fit_batches(wanted - taken_bytes, batch_bytes, prefetch.value)
        fewer = prefetch.reason if kept == prefetch.value else f"no more fit data.memory, of {prefetch.value}"
        limit: Choice[int | None] = Choice(wanted, "data.memory says so", wanted)
        return MemoryPlan(limit, Choice(kept, fewer, prefetch.wanted), left)
    pinned_bytes = (prefetch.value + 2) * batch_bytes if is_pinned else 0
    half: Choice[int | None] = Choice(budget_bytes, "half of what this process may still take", AUTO)
    return MemoryPlan(half, prefetch, max(0, budget_bytes - taken_bytes - pinned_bytes))


# Shared batches


def choose_sharing(wanted: str) -> Choice[str]:
    """off, HERE, or the address of a service."""
    if is_open(wanted):
        return Choice(HERE, "with other jobs on this machine", wanted)
    return as_set("data.shared", wanted)


def choose_shared_bytes(data: DataConfig) -> Choice[int | None]:
    """Room for shared batches; None where the service, or the job that starts it, takes its own default."""
    if isinstance(data.shared_bytes, int):
        return Choice(data.shared_bytes, "data.shared_bytes says so", data.shared_bytes)
    if choose_sharing(data.shared).value != HERE:
        return Choice(None, "no batches are shared on this machine", AUTO)
    return Choice(None, "a quarter of the free memory, set by the job that comes first", AUTO)


# All of it


@dataclass(frozen=True)
class DataDecisions:
    """How the batches of a run are loaded; named as the keys under `data` of a recipe where there is one."""

    remote: Choice[bool]
    worker_kind: Choice[str]
    """inline, thread, process, or shared."""
    workers: Choice[int]
    most_workers: Choice[int]
    fetchers: Choice[int]
    prefetch: Choice[int]
    memory: Choice[int | None]
    stage: StageChoice
    cache: CacheChoice | None
    """None for a run that did not write it down."""
    shared: Choice[str]
    shared_bytes: Choice[int | None]


def remote_choice(remote: bool, wanted: Any = None) -> Choice[bool]:
    why = "behind an object store, or on a mount of one" if remote else "on a disk of this machine"
    return Choice(remote, why, wanted)


def decided_locally(
    data: DataConfig, pool: PoolChoice, memory: MemoryPlan, stage: StageChoice, cache: CacheChoice
) -> DataDecisions:
    """Of a loader of its own."""
    ahead = Choice(pool.prefetch_with(pool.workers.value, memory.prefetch.value), memory.prefetch.reason, data.prefetch)
    return DataDecisions(
        remote_choice(stage.remote),
        pool.kind,
        pool.workers,
        pool.most_workers,
        pool.fetchers,
        ahead,
        memory.memory,
        stage,
        cache,
        choose_sharing(data.shared),
        choose_shared_bytes(data),
    )


def decide_shared(data: DataConfig, workers: int | Choice[int], remote: bool) -> DataDecisions:
    """Of a loader whose batches come from a service. Producers stage and cache as they decide on their machine; when
    this job works alone, its own decisions follow as a change."""
    chosen = workers if isinstance(workers, Choice) else Choice(workers, "asked for by the caller", data.workers)
    elsewhere = "the service's producers decide on their own machine"
    ahead = max(_SHARED_PREFETCH, 2 * chosen.value)
    stage = StageChoice(SERVICE if remote and data.stage != OFF else OFF, elsewhere, data.stage, remote)
    return DataDecisions(
        remote_choice(remote),
        Choice("shared", "data.shared is on: a service hands out the batches", data.worker_kind),
        chosen,
        Choice(chosen.value, "their number stays as it is"),
        choose_fetchers("thread" if chosen.value else "inline", remote),
        Choice(ahead, "two for each worker that would work alone", data.prefetch),
        Choice(None, "the service has a budget of its own", data.memory),
        stage,
        CacheChoice(data.cache, SERVICE, elsewhere),
        choose_sharing(data.shared),
        choose_shared_bytes(data),
    )


def choose_text_workers(wanted: int | str) -> Choice[int]:
    """Threads that pad sentence pairs ahead of the loop: none or one."""
    if isinstance(wanted, int):
        return as_set("data.workers", wanted)
    return Choice(_TEXT_WORKERS, "padding takes little; one thread hides even that", AUTO)


def decide_text(data: DataConfig, workers: int | Choice[int]) -> DataDecisions:
    """Of sentence pairs, whose text is in memory from the start."""
    chosen = workers if isinstance(workers, Choice) else Choice(workers, "asked for by the caller", data.workers)
    count, in_memory = chosen.value, "the text is in memory from the start"
    if count == 0:
        ahead = Choice(0, "without workers there is the next batch alone", data.prefetch)
    elif isinstance(data.prefetch, int):
        ahead = as_set("data.prefetch", data.prefetch)
    else:
        ahead = Choice(_TEXT_PREFETCH, "one that is ready and one under way", AUTO)
    return DataDecisions(
        remote_choice(is_url(data.path)),
        Choice(
            "thread" if count else "inline", "text is padded by one thread, or by the training thread", data.worker_kind
        ),
        chosen,
        Choice(count, "their number stays as it is"),
        Choice(0, in_memory),
        ahead,
        Choice(None, in_memory, data.memory),
        StageChoice(OFF, in_memory, data.stage, False),
        CacheChoice(data.cache, OFF, in_memory, possible=False),
        choose_sharing(data.shared),
        choose_shared_bytes(data),
    )
