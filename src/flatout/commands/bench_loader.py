"""How fast this machine can feed a model, stage by stage: read, + decode, + augment, the whole loader, the cache.

Stages are measured in turns, round after round, so that a noisy neighbour meets all of them. Every stage takes the next
batches of one random order, so none profits from files that another has just warmed up.
"""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import psutil

from flatout.config.loading import load_config
from flatout.config.schema import DataConfig
from flatout.data.batch import Batch, LoadStats
from flatout.data.loading.loader import Loader, choose_workers, open_loader
from flatout.data.loading.pools import Buffers, InlinePool, ThreadPool
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.loading.sample_cache import SampleCache
from flatout.data.loading.staging import is_remote
from flatout.data.loading.tiers import choose_cache
from flatout.data.pixels.decode import Undecodable, decode_pixels, decoder_name, native
from flatout.data.pixels.views import resolve_view
from flatout.data.source.dataset import open_dataset
from flatout.data.source.readers import read_source
from flatout.decisions.choice import AUTO
from flatout.decisions.loading import choose_pool
from flatout.errors import DataError, ObjectMissing, StorageError
from flatout.machine.budgets import memory_budget_bytes, usable_cores
from flatout.reports.loader_bench import STAGES, say_workers
from flatout.reports.loader_bench import bench_table as bench_table
from flatout.training.display import Display
from flatout.units import format_bytes

ROUNDS = 5
_SCALES = 0.75  # of so many times one thread: below, the threads are in each other's way
_ADVICE = {
    "fetch": "Data on a local disk or in a pack (fewer, larger files) reads faster.",
    "decode": "Smaller images (a resized pack), more workers, or the cache of decoded samples help.",
    "augment": "A smaller view or fewer operations, or more workers, help.",
}
_UNCOUNTED_VOLLEYS = 4
_DISTURBED = 0.3  # cores that something else may use before it is worth a word


@dataclass
class Turn:
    """One stage in one round."""

    images: int = 0
    bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass
class Bench:
    """What is measured, and how far in the order of samples the stages have come."""

    recipe: BatchPlan
    config: DataConfig
    workers: int
    turn_seconds: float
    position: int = 0
    undecodable: int = 0
    decoded_bytes: int = 0
    decoded_images: int = 0
    buffers: Buffers = field(default_factory=Buffers)

    @property
    def pool(self) -> str:
        """inline, thread or process: as training would have it with so many workers."""
        return choose_pool(self.config.worker_kind, self.workers, native is not None).value

    def next_key(self) -> tuple[int, int]:
        """Epoch and index of the next batch."""
        self.position += 1
        return divmod(self.position - 1, self.recipe.batches_per_epoch)


def bench_loader(
    path: str,
    view: str = "train-224",
    batch_size: int = 256,
    workers: int | None = None,
    seconds: float = 3.0,
    quiet: bool = True,
) -> dict[str, Any]:
    """Measure every stage for `seconds` in all, but at least a batch in each of five rounds."""
    bench = _open(path, view, batch_size, workers, seconds)
    inside = LoadStats()
    stages: dict[str, Callable[[], Turn]] = {
        "read": lambda: _read(bench),
        "decode": lambda: _read(bench, decode=True),
        "augment": lambda: _augment(bench, inside),
        "loader": lambda: _loader(bench),
    }
    others = _Others()
    with Display(quiet) as display:
        warm = _warm_up(stages, display)
        note, cache = _fill_cache(bench, warm["loader"].images / warm["loader"].seconds * seconds)
        if cache is not None:
            stages["cached"] = lambda: _cached(bench, *cache)
        turns = _rounds(stages, display)
    result = {"path": path, "view": view, "seconds": seconds, **_describe(bench, turns, inside, others.cores())}
    result["notes"] = [note, *_notes(bench, result, batch_size)]
    return result


def _open(path: str, view: str, batch_size: int, workers: int | None, seconds: float) -> Bench:
    values = {"path": path, "batch_size": batch_size, "max_quarantine_share": 1.0, "stage": "off", "cache": "off"}
    config = load_config({"data": values}).config.data  # no samples are left on disk
    split = open_dataset(config).train
    recipe = BatchPlan(split, resolve_view(view), 0, min(batch_size, len(split)))
    count = choose_workers(AUTO if workers is None else workers, "cuda", recipe).value
    with open_loader(recipe, config, 0) as loader:
        return Bench(loader.recipe, config, count, seconds / ROUNDS)  # the loader knows the shape of a raw view


def _warm_up(stages: dict[str, Callable[[], Turn]], display: Display) -> dict[str, Turn]:
    """Each stage once, not counted: imports, page faults of new buffers, a disk that spins up."""
    display.begin("warming up", 0, len(stages))
    turns: dict[str, Turn] = {}
    for name, stage in stages.items():
        turns[name] = stage()
        display.advance("warming up", len(turns), len(stages), STAGES[name])
    if not all(turn.images for turn in turns.values()):
        raise DataError("not one of the samples could be decoded; look at the dataset with: flatout data audit")
    return turns


def _rounds(stages: dict[str, Callable[[], Turn]], display: Display) -> dict[str, list[Turn]]:
    """All stages in turns; every round begins with another one."""
    turns: dict[str, list[Turn]] = {name: [] for name in stages}
    total, names = ROUNDS * len(stages), list(stages)
    display.begin("measuring", 0, total)
    for number in range(ROUNDS):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            turns[name].append(stages[name]())
            display.advance("measuring", sum(map(len, turns.values())), total, STAGES[name])
    return turns


def _timed(bench: Bench, work: Callable[[Turn], None]) -> Turn:
    """Do the work again and again for the length of a turn, at least once."""
    turn, started, cpu_started = Turn(), time.perf_counter(), time.process_time()
    while not turn.seconds or turn.seconds < bench.turn_seconds:
        work(turn)
        turn.seconds, turn.cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return turn


def _read(bench: Bench, decode: bool = False) -> Turn:
    """The bytes of samples, and with `decode` all of their pixels, by one thread."""
    split = bench.recipe.split

    def read_batch(turn: Turn) -> None:
        ids = bench.recipe.ids(*bench.next_key())
        shapes = split.shapes(ids)
        for slot, source in enumerate(split.locate(ids)):
            answer = read_source(source)
            if isinstance(answer, ObjectMissing):
                continue
            if isinstance(answer, StorageError):
                raise answer
            data = bytes(answer)  # a slice of a mapped file is not read before it is touched
            turn.bytes += len(data)
            turn.images += 1
            if decode and (shapes is None or not shapes[slot][0]):
                _decode(bench, data)

    return _timed(bench, read_batch)


def _decode(bench: Bench, data: bytes) -> None:
    try:
        bench.decoded_bytes += decode_pixels(data).nbytes
        bench.decoded_images += 1
    except Undecodable:
        bench.undecodable += 1


def _augment(bench: Bench, inside: LoadStats) -> Turn:
    """Whole batches, by this thread; `inside` adds up what their parts took."""

    def prepare_batch(turn: Turn) -> None:
        epoch, index = bench.next_key()
        prepared = prepare(bench.recipe, epoch, index, bench.buffers.take(bench.recipe.shape(epoch)))
        inside.add(prepared.stages)
        turn.images += len(prepared.sample_ids)
        turn.bytes += prepared.stages.bytes_read

    return _timed(bench, prepare_batch)


def _loader(bench: Bench) -> Turn:
    """The loader as training opens it, in its first epoch: nothing is cached yet."""
    with open_loader(bench.recipe, bench.config, bench.workers) as loader:
        turn = _consume(bench, _endless(loader, *bench.next_key()))
    bench.position += turn.images // bench.recipe.batch_size + _UNCOUNTED_VOLLEYS * bench.workers
    return turn


def _endless(loader: Loader, epoch: int, index: int) -> Iterator[Batch]:
    while True:
        yield from loader.epoch(epoch, index)
        epoch, index = epoch + 1, 0


def _consume(bench: Bench, batches: Iterator[Batch]) -> Turn:
    """Take batches as fast as they come. Workers begin together and finish together, so whole volleys are counted.
    The first ones come before the clock: until buffers come back, each batch pays for the page faults of a new one."""
    volley = max(1, bench.workers)
    deque(islice(batches, _UNCOUNTED_VOLLEYS * volley), maxlen=0)

    def take_volley(turn: Turn) -> None:
        for batch in islice(batches, volley):
            turn.images += len(batch.sample_ids)
            turn.bytes += batch.stages.bytes_read

    return _timed(bench, take_volley)


def _fill_cache(bench: Bench, images: float) -> tuple[str, tuple[BatchPlan, SampleCache] | None]:
    """Would training cache decoded samples in memory? Then about `images` of them are, to measure the second epoch."""
    recipe, kind = bench.recipe, bench.pool
    if recipe.split.shapes(np.zeros(1, np.int64)) is not None:
        return "cache: not needed, the pack is decoded", None
    if kind == "process" or not bench.decoded_images:
        return "cache: off, worker processes do not share one", None
    needed = bench.decoded_bytes / bench.decoded_images * len(recipe.split)
    if needed > (room := memory_budget_bytes()):
        text = f"{format_bytes(needed)} of decoded samples do not fit the {format_bytes(room)} to spare in memory"
        return f"cache: {text}; a disk cache is not measured here", None
    batches = min(recipe.batches_per_epoch, max(2 * bench.workers + 1, round(images / recipe.batch_size)))
    some = recipe.split.take(np.concatenate([recipe.ids(0, index) for index in range(batches)]))
    part = replace(recipe, split=some)
    chosen = choose_cache("memory", part, kind)
    if chosen.store is None:
        return chosen.choice.note, None
    with _cached_loader(bench, part, chosen.store) as loader:
        deque(loader.epoch(0), maxlen=0)
    return f"cache: all {format_bytes(needed)} of decoded samples fit memory; measured with {len(some)} of them", (
        part,
        chosen.store,
    )


def _cached_loader(bench: Bench, recipe: BatchPlan, cache: SampleCache) -> Loader:
    pool = ThreadPool(recipe, bench.workers, cache) if bench.workers else InlinePool(recipe, cache)
    return Loader(recipe, pool, max(1, 2 * bench.workers), bench.config.batch_deadline_seconds, 1.0)


def _cached(bench: Bench, recipe: BatchPlan, cache: SampleCache) -> Turn:
    with _cached_loader(bench, recipe, cache) as loader:
        return _consume(bench, _endless(loader, 1, 0))


def _describe(bench: Bench, turns: dict[str, list[Turn]], inside: LoadStats, busy_elsewhere: float) -> dict[str, Any]:
    kind = bench.pool
    stages = [_describe_stage(name, each, bench.workers, kind) for name, each in turns.items()]
    rates = {stage["name"]: stage["images_per_second"] for stage in stages}
    whole = inside.fetch + inside.decode + inside.augment
    shares = {name: getattr(inside, name) / whole if whole else None for name in ("fetch", "decode", "augment")}
    cause, sentence = limiting(rates, shares, bench.workers, usable_cores(), busy_elsewhere)
    return {
        "batch_size": bench.recipe.batch_size,
        "samples": len(bench.recipe.split),
        "workers": bench.workers,
        "worker_kind": kind,
        "cores": usable_cores(),
        "cores_busy_elsewhere": busy_elsewhere,
        "decoder": decoder_name(),
        "rounds": ROUNDS,
        "stages": stages,
        "inside_a_batch": shares,
        "limit": {"cause": cause, "sentence": sentence},
    }


def _describe_stage(name: str, turns: list[Turn], workers: int, kind: str) -> dict[str, Any]:
    rates = [turn.images / turn.seconds for turn in turns]
    threads = max(1, workers) if name in ("loader", "cached") else 1
    foreign = threads > 1 and kind == "process"  # processor time of other processes is not seen here
    cores = [turn.cpu_seconds / turn.seconds for turn in turns]
    rates_bytes = [turn.bytes / turn.seconds for turn in turns]  # pixels of a decoded pack are mapped, not counted
    per_core = [turn.images / turn.cpu_seconds for turn in turns if turn.cpu_seconds]
    return {
        "name": name,
        "images_per_second": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "images_per_second_per_core": None if foreign or not per_core else statistics.median(per_core),
        "cores_busy": None if foreign else statistics.median(cores),
        "bytes_per_second": statistics.median(rates_bytes) if any(rates_bytes) and name != "cached" else None,
        "threads": threads,
        "images": sum(turn.images for turn in turns),
    }


def limiting(
    rates: Mapping[str, float],
    shares: Mapping[str, float | None],
    workers: int,
    cores: int,
    busy_elsewhere: float = 0.0,
) -> tuple[str, str]:
    """The cause (by the names that `explain` uses) and one sentence. Pure."""
    got, alone, usable = rates["loader"], rates["augment"], max(1, min(workers, cores))
    if got < _SCALES * usable * alone:
        figures = f"{say_workers(workers)} gave {got:.0f} images/s, {got / alone:.2g} times one thread alone"
        if busy_elsewhere > _DISTURBED:
            who = f"other processes kept {busy_elsewhere:.1f} of {cores} cores busy"
            return (
                "host",
                f"Something else on this machine limits: {who}, and {figures}. Measure again when it is idle.",
            )
        return "host", f"The workers limit each other: {figures}; they share memory bandwidth, a disk or a lock."
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return "unexplained", f"The loader gives {got:.0f} images/s; what its time goes to could not be measured."
    most = max(known, key=lambda name: known[name])
    words = {"fetch": "reading", "decode": "decoding", "augment": "augmenting"}
    rest = ", ".join(f"{words[name]} {100 * share:.0f} %" for name, share in known.items() if name != most)
    more = f"; {cores - usable} of {cores} cores are still free for more workers" if usable < cores else ""
    return f"data-{most}", (
        f"{words[most].capitalize()} limits: it takes {100 * known[most]:.0f} % of the work on a batch ({rest}), "
        f"and the loader gives {got:.0f} images/s with {say_workers(workers)}{more}. {_ADVICE[most]}"
    )


def _notes(bench: Bench, result: dict[str, Any], wanted_batch: int) -> list[str]:
    rates = {stage["name"]: stage["images_per_second"] for stage in result["stages"]}
    times_read = bench.position / bench.recipe.batches_per_epoch
    notes = []
    if result["cores_busy_elsewhere"] > _DISTURBED:
        busy = f"{result['cores_busy_elsewhere']:.1f} of {result['cores']} cores"
        notes.append(f"other processes kept {busy} busy meanwhile: this machine alone would be faster")
    if bench.recipe.batch_size < wanted_batch:
        notes.append(f"batch size {bench.recipe.batch_size}, not {wanted_batch}: there are no more samples")
    if times_read > 1 and not is_remote(bench.recipe.split):
        notes.append(f"every sample was read {times_read:.0f} times or so: mostly from memory, not from the disk")
    if rates["augment"] > rates["decode"]:
        notes.append("+ augment beats + decode since it decodes by the batch, and only as much as the crop needs")
    if bench.undecodable:
        notes.append(f"{bench.undecodable} samples could not be decoded; see: flatout data audit")
    return notes


class _Others:
    """How much of the processors everything else on this machine uses, from now on."""

    def __init__(self) -> None:
        self._started, self._busy_seconds = time.monotonic(), _busy_seconds()

    def cores(self) -> float:
        return max(0.0, (_busy_seconds() - self._busy_seconds) / max(1e-9, time.monotonic() - self._started))


def _busy_seconds() -> float:
    """Of all processors, without those of this process and its children."""
    times, own = psutil.cpu_times(), os.times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0)  # guest is in user already
    return sum(times) - idle - own.user - own.system - own.children_user - own.children_system
