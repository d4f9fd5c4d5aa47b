"""Runs with one thing wrong (or nothing): what is injected, how, and the cause that `flatout explain` must name.

A recipe does it where it can. Where it cannot (a slow logger, a leak), `inject` patches the process that trains.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servers.faults import Faults, Rule


@dataclass(frozen=True)
class Scenario:
    name: str
    cause: str
    """What explain must answer."""
    says: str = ""
    """A word that its verdict must hold, where the cause's word alone would be too coarse."""
    data: str = "small"
    """Which dataset: small (64 px), middle (512 px), big (1024 px), long-val, mismatched."""
    settings: dict[str, Any] = field(default_factory=dict)
    faults: Faults | None = None
    """Of a store; the dataset is then read from S3."""
    inject: Callable[[], None] | None = None
    fails: bool = False
    ranks: int = 1
    link: str | None = None
    """Speed of the link between two nodes, as tc says it; needs root."""
    neighbours: int = 0
    """Other processes that only compute meanwhile."""


# What is patched into the training process


def slow_logger(seconds: float = 0.03) -> None:
    """A tracker that answers in 30 ms, asked after every step."""
    from flatout.training.recording import RunRecords

    write = RunRecords.step

    def step(self: RunRecords, record: Any) -> None:
        time.sleep(seconds)
        write(self, record)

    RunRecords.step = step  # type: ignore[method-assign]


def slow_start(seconds: float = 12.0) -> None:
    """Something before the first step that takes 12 s."""
    from flatout.commands import train

    prepare = train.prepare_setup

    def prepare_setup(*arguments: Any) -> Any:
        time.sleep(seconds)
        return prepare(*arguments)

    train.prepare_setup = prepare_setup


def slow_epoch_start(seconds: float = 1.0) -> None:
    """Workers that are built anew for each epoch."""
    from flatout.data.loading.loader import Loader

    epoch = Loader.epoch

    def slow(self: Loader, number: int, start: int = 0) -> Any:
        time.sleep(seconds)
        yield from epoch(self, number, start)

    Loader.epoch = slow  # type: ignore[method-assign]


def leak(size_bytes: int = 8_000_000) -> None:
    """8 MB kept from every step."""
    from flatout.training.recording import RunRecords

    write, kept = RunRecords.step, []

    def step(self: RunRecords, record: Any) -> None:
        kept.append(bytearray(b"x" * size_bytes))
        write(self, record)

    RunRecords.step = step  # type: ignore[method-assign]


def slow_copy(seconds: float = 0.02) -> None:
    from flatout.tasks.classification.task import Classification

    copy = Classification.to_device

    def to_device(self: Classification, *arguments: Any) -> Any:
        time.sleep(seconds)
        return copy(self, *arguments)

    Classification.to_device = to_device  # type: ignore[method-assign]


def late_rank(seconds: float = 0.06) -> None:
    """Rank 1 needs 60 ms more for each step."""
    import os

    from flatout.tasks.classification.task import Classification

    copy = Classification.to_device

    def to_device(self: Classification, *arguments: Any) -> Any:
        time.sleep(seconds if os.environ.get("RANK") == "1" else 0.0)
        return copy(self, *arguments)

    Classification.to_device = to_device  # type: ignore[method-assign]


def unowned_time() -> None:
    """A pause between spans: nobody's."""
    from flatout.engine import loop

    ended = loop._steps_done

    def steps_done(*arguments: Any) -> bool:
        time.sleep(0.03)
        return ended(*arguments)

    loop._steps_done = steps_done


def slow_augment(seconds: float = 0.003) -> None:
    """A transform of the user's own, in Python: 3 ms an image."""
    from flatout.data.loading import prepare

    finished = prepare._finished

    def slow(recipe: Any, fetched: Any, images: Any, *rest: Any) -> Any:
        started = time.perf_counter()
        while time.perf_counter() < started + seconds * len(fetched.ids):
            sum(range(1000))
        fetched.stages.augment += time.perf_counter() - started
        return finished(recipe, fetched, images, *rest)

    prepare._finished = slow


def slow_reads(delay: Callable[[Any, Any], float]) -> None:
    """Reading a batch's files takes longer: `delay` of its plan and the ids of those that no cache has, in seconds."""
    from flatout.data.loading import pools, prepare

    fetch = prepare.fetch

    def slow(recipe: Any, epoch: int, index: int, cache: Any = None) -> Any:
        started = time.perf_counter()
        fetched = fetch(recipe, epoch, index, cache)
        rows = fetched.cache_rows
        time.sleep(delay(recipe, fetched.ids if rows is None else fetched.ids[rows >= 0]))
        fetched.stages.fetch = time.perf_counter() - started
        fetched.work[0] = type(fetched.work[0])(fetched.work[0].worker, "fetch", started, fetched.stages.fetch)
        return fetched

    pools.fetch = prepare.fetch = slow


def slow_disk(seconds: float = 0.002) -> None:
    """2 ms for each file."""
    slow_reads(lambda recipe, ids: seconds * len(ids))


def slow_folder(seconds: float) -> None:
    """The files of one class are on a slow mount."""
    slow_reads(lambda recipe, ids: seconds * int((recipe.split.labels[ids] == 0).sum()))


def slow_tail(share: float, seconds: float) -> None:
    """A few of the files, the same in every epoch, take very long."""
    slow_reads(lambda recipe, ids: seconds * int((ids * 7919 % 1000 < 1000 * share).sum()))


def slow_saves(bytes_per_second: float) -> None:
    """A disk for checkpoints that writes slowly."""
    from flatout.engine import checkpoint

    save = checkpoint.save

    def slow(*arguments: Any) -> Any:
        path = save(*arguments)
        time.sleep(path.stat().st_size / bytes_per_second)
        return path

    checkpoint.save = slow


# The matrix. Emulated devices want 64 images in 30 ms unless said otherwise.

QUICK = {"emulated.base_seconds": 0.005, "emulated.seconds_per_sample": 0.0004}
SLOW = {"emulated.base_seconds": 0.02, "emulated.seconds_per_sample": 0.002}
COLOURS = {
    "views.colourful.base": "train-224", "views.colourful.size": 160, "views.colourful.colour_jitter": [0.4, 0.4, 0.4],
    "views.colourful.trivial_augment": True, "data.view": "colourful",
}  # fmt: skip
REAL = {"device": "cpu", "threads": 1, "model.width": 0.125, "data.batch_size": 32, "train.max_steps": 60}

SCENARIOS = (
    Scenario("healthy: compute-bound, emulated", "compute", settings=SLOW),
    Scenario("healthy: compute-bound, real CPU", "compute", settings=REAL),
    Scenario("healthy: spare cores and a full queue", "compute", settings={**SLOW, "data.workers": 2}),
    Scenario("healthy: decoded cache in memory, many epochs", "compute", settings={**SLOW, "data.cache": "memory", "train.epochs": 4}),
    Scenario("0 workers", "data-workers", data="big", settings={**QUICK, "data.workers": 0}),
    Scenario("0 workers, real CPU", "data-workers", data="big", settings={**REAL, "data.workers": 0}),
    Scenario("too few workers", "data-workers", data="big", settings={**QUICK, "data.workers": 1}),
    Scenario("heavy decode, every core busy", "data-decode", data="big", settings={**QUICK, "data.workers": 2, "emulated.seconds_per_sample": 0.0001}),
    Scenario("heavy Python augmentation (colours)", "data-augment", settings={**QUICK, **COLOURS, "data.workers": 2}),
    Scenario("heavy Python augmentation (own transform)", "data-augment", settings={**QUICK, "data.workers": 1}, inject=slow_augment),
    Scenario("workers without room to work ahead", "data-workers", says="ahead", data="big", settings={**QUICK, "data.workers": 2, "data.prefetch": 1}),
    Scenario("slow disk", "data-fetch", says="disk", settings=QUICK, inject=slow_disk),
    Scenario("slow store: latency 300 ms", "data-fetch", settings={**QUICK, "data.stage": "off", "train.max_steps": 30}, faults=Faults(latency_seconds=0.3)),
    Scenario("slow store: bandwidth 4 MB/s", "data-fetch", data="middle", settings={**QUICK, "data.stage": "off", "train.max_steps": 16}, faults=Faults(bytes_per_second=4e6)),
    Scenario("throttling store", "data-fetch", says="throttle", settings={**QUICK, "data.stage": "off", "train.max_steps": 40},
             faults=Faults(rules=[Rule("throttle", share=0.4, objects_only=True)])),
    Scenario("unreliable store", "data-fetch", settings={**QUICK, "data.stage": "off"},
             faults=Faults(latency_seconds=0.1, rules=[Rule("disconnect", share=0.12, objects_only=True)])),
    Scenario("cold first epoch, then staged", "data-fetch", says="first epoch", settings={**SLOW, "data.stage": "auto", "train.epochs": 4},
             faults=Faults(latency_seconds=0.5)),
    Scenario("cold first epoch, then cached", "data-decode", says="first epoch", data="big",
             settings={**QUICK, "data.cache": "memory", "data.workers": 2, "train.epochs": 6, "emulated.seconds_per_sample": 0.0003}),
    Scenario("slow epoch start", "epoch-start", settings={**SLOW, "emulated.seconds_per_sample": 0.0005, "train.epochs": 6}, inject=slow_epoch_start),
    Scenario("tiny batch, emulated", "host", says="batch", settings={**QUICK, "data.batch_size": 2, "train.epochs": 1, "train.max_steps": 250}),
    Scenario("tiny batch, real CPU", "host", says="batch", settings={**REAL, "data.batch_size": 2, "train.max_steps": 150}),
    Scenario("checkpoint every step", "checkpoint", settings={**SLOW, "checkpoint.every_steps": 1}),
    Scenario("long validation", "validation", data="long-val", settings={**SLOW, "emulated.seconds_per_sample": 0.001}),
    Scenario("100 Mb/s link between two nodes", "network", says="100 Mb/s", settings={**SLOW, "model.width": 0.5, "parallel.mode": "ddp", "parallel.nodes": 2, "cost.count": 2, "train.max_steps": 10}, link="100mbit"),
    Scenario("straggler rank", "straggler", says="rank 1", settings={**SLOW, "emulated.seconds_per_sample": 0.0005, "parallel.mode": "ddp", "parallel.devices": 2}, ranks=2, inject=late_rank),
    Scenario("slow start-up", "startup", settings=SLOW, inject=slow_start),
    Scenario("wrong labels in val", "labels", data="mismatched", settings={**REAL, "train.epochs": 6, "train.max_steps": None, "data.view": "train-32", "data.eval_view": "eval-32", "views.train-32.base": "train-64", "views.train-32.size": 32, "views.eval-32.base": "eval-64", "views.eval-32.size": 32, "validate.every_epochs": 1}),
    Scenario("NaN: learning rate far too high", "diverged", settings={**REAL, "train.lr": 1e9, "train.warmup_epochs": 0}, fails=True),
    Scenario("memory growth", "memory", settings={**SLOW, "train.epochs": 5}, inject=leak),
    Scenario("device idle while a logger is awaited", "host", says="idle", settings={**SLOW, "emulated.seconds_per_sample": 0.0005}, inject=slow_logger),
    Scenario("slow copy to the device", "copy", settings={**SLOW, "emulated.seconds_per_sample": 0.0005}, inject=slow_copy),
    Scenario("more threads than cores", "host", says="threads", settings={**REAL, "threads": 16, "train.max_steps": 20}),
    Scenario("busy neighbours", "host", says="other processes", settings=REAL, neighbours=3),
    Scenario("time without an owner", "unexplained", says="No verdict", settings={**SLOW, "emulated.seconds_per_sample": 0.0005}, inject=unowned_time),
)  # fmt: skip
