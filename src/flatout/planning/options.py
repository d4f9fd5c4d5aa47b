"""One job on one machine: does it fit, how fast, what limits, how long, how much; and what to change for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flatout.cost.machines import Machine
from flatout.diagnosis.model.communication import Link, even_buckets, exposed_seconds
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.run import RunParts
from flatout.diagnosis.model.step import step_seconds
from flatout.planning.cards import Card
from flatout.planning.data_path import DataFeed, Samples, automatic_workers, feed_of, store_name
from flatout.planning.estimate import Basis, Correction, Speed, arithmetic_for, host_seconds, speed_of
from flatout.planning.memory import MemoryParts, MemorySetup, largest_batch, memory_of
from flatout.planning.work import TracedWork

_STARTUP = Interval(60.0, 20.0, 180.0)
"""Interpreter, torch, CUDA and the first batches; the machine's own boot is not in it."""
_CHECKPOINT_SECONDS = 2.0
_EXCHANGE_LATENCY_SECONDS = 40e-6
_NVLINK_SHARE, _PCIE_SHARE, _NETWORK_SHARE = 0.35, 0.35, 0.95
"""What an all-reduce gets of the stated rates: NVLink's counts both directions, PCIe goes through the host; a port is
filled but for the headers (story B sat at exactly 100 Mb/s)."""
_SHARDED_TRAFFIC = 1.5
"""FSDP gathers the weights twice and scatters the gradients once: three halves of an all-reduce."""
_STRAGGLING = Interval(0.017, 0.003, 0.045)
"""Of a step, for each doubling of the ranks: they wait for the slowest, and the exchange takes its share of each card.
As ResNets were published on two, four and eight cards of one machine."""
_UNKNOWN_NETWORK_GBPS = 10.0
_MOST_PARTS = 64
_WORTH_DOUBLING = 1.05
"""Speed that twice the batch must bring to be advised."""
_RESIZED_SHARE = 0.35
"""What decoding an image of 256 pixels takes of decoding a photograph of 500."""


@dataclass(frozen=True)
class PlannedJob:
    """A recipe as the planner sees it. `works(narrow, checkpointing)` is its traced step."""

    model: str
    works: Callable[[bool, bool], TracedWork]
    samples: Samples
    batch: int
    epochs: int
    max_steps: int | None = None
    precision: str = "auto"
    tf32: bool = True
    channels_last: bool | None = True
    checkpointing: bool = False
    can_checkpoint: bool = True
    accumulate: int = 1
    sharded: bool = False
    workers: int | None = None
    """None: as many as there are vCPUs."""
    cached: bool = True
    nodes: int = 1
    validations: int = 1
    correction: Correction | None = None


@dataclass(frozen=True)
class RecipeChange:
    """A key of the recipe for this machine. What is applied is in the figures; the rest is advice with its gain."""

    key: str
    value: Any
    why: str
    applied: bool
    gain: float | None = None
    """Speed with it over speed without."""


@dataclass(frozen=True)
class Option:
    """The job on one machine, at one price."""

    machine: Machine
    card: Card
    spot: bool
    fits: bool
    memory: MemoryParts
    largest_batch: int
    device_per_second: Interval
    per_second: Interval
    limit: str
    hours: Interval
    usd: Interval | None
    basis: Basis
    changes: tuple[RecipeChange, ...]
    precision: str
    waiting_share: float
    """Of a step: the device has nothing to do."""
    notes: tuple[str, ...] = ()
    speed: Speed | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.machine.name} (spot)" if self.spot else self.machine.name

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": self.machine.name,
            "cloud": self.machine.cloud,
            "region": self.machine.region,
            "spot": self.spot,
            "gpu": self.card.name,
            "gpus": self.machine.gpus,
            "vcpus": self.machine.vcpus,
            "fits": self.fits,
            "peak_bytes": self.memory.peak_bytes,
            "memory": self.memory.to_dict(),
            "largest_batch": self.largest_batch,
            "device_samples_per_second": self.device_per_second.to_dict(),
            "samples_per_second": self.per_second.to_dict(),
            "limit": self.limit,
            "hours": self.hours.to_dict(),
            "usd": None if self.usd is None else self.usd.to_dict(),
            "basis": str(self.basis),
            "precision": self.precision,
            "waiting_share": self.waiting_share,
            "changes": [asdict(each) for each in self.changes],
            "notes": list(self.notes),
            "prices_dated": self.machine.as_of,
        }


@dataclass(frozen=True)
class _Held:
    """How the job is made to fit."""

    work: TracedWork
    setup: MemorySetup
    memory: MemoryParts
    fits: bool
    changes: tuple[RecipeChange, ...]


def option_for(job: PlannedJob, machine: Machine, card: Card, spot: bool = False) -> Option:
    """Everything about the job on this machine."""
    arithmetic = arithmetic_for(card, job.precision, job.tf32)
    ranks = machine.gpus * job.nodes
    held = _make_fit(job, card, arithmetic, ranks)
    part = math.ceil(job.batch / held.setup.accumulate)
    speed = speed_of(held.work, part, card, arithmetic, job.channels_last, job.model, job.correction)
    device = speed.seconds * held.setup.accumulate
    exposed = exposed_exchange(job.nodes, machine, card, held.work, device.value, held.setup.sharded)
    host = machine.gpus * held.setup.accumulate * host_seconds(held.work)
    feed = feed_of(job.samples, machine, job.batch * machine.gpus, job.epochs, job.cached, host)
    global_batch = job.batch * ranks
    loading = Interval.exact(job.batch * machine.gpus) / feed.per_second
    step = Interval(
        *(step_seconds(d, x, q) for d, x, q in zip(_ends(device), _ends(exposed), _ends(loading), strict=True))
    )
    hours = _run_seconds(job, step, device, ranks, held.work) * (1 / 3600)
    limit = "device" if device.value >= loading.value else feed.limit
    if device.value + exposed.value > loading.value and exposed.value > 0.5 * device.value:
        limit = "network"
    waiting = max(0.0, 1 - device.value / step.value)
    found = Option(
        machine,
        card,
        spot,
        held.fits,
        held.memory,
        largest_batch(held.work, held.setup, card.memory_bytes),
        Interval.exact(global_batch) / device,
        Interval.exact(global_batch) / step,
        limit,
        hours,
        None,
        speed.basis,
        held.changes,
        arithmetic,
        waiting,
        _notes(job, machine, card, feed),
        speed,
    )
    changes = (*held.changes, *_layout_changes(job, machine, feed, held), *_advice(job, found, feed))
    return at_price(replace(found, changes=changes), spot, job.nodes)


def at_price(option: Option, spot: bool, nodes: int) -> Option:
    """The same machine, paid for otherwise."""
    price = option.machine.hourly_usd(spot)
    return replace(option, spot=spot, usd=None if price is None else option.hours * (price * nodes))


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def _make_fit(job: PlannedJob, card: Card, arithmetic: str, ranks: int) -> _Held:
    """As it is; else the batch cut into parts; else activations recomputed. What none of it saves is told as it is."""
    narrow = arithmetic == "amp"
    tried: list[_Held] = []

    def attempt(checkpointing: bool, accumulate: int, sharded: bool, changes: Sequence[RecipeChange]) -> _Held:
        work = job.works(narrow, checkpointing)
        setup = MemorySetup(job.batch, accumulate, ranks, sharded)
        memory = memory_of(work, setup)
        tried.append(_Held(work, setup, memory, memory.fits(card.memory_bytes), tuple(changes)))
        return tried[-1]

    plain = attempt(job.checkpointing, job.accumulate, job.sharded, ())
    if plain.fits:
        return plain
    too_much = f"{plain.memory.peak_bytes / 1e9:.1f} GB at batch {job.batch} does not fit {card.name}"
    parts = job.accumulate
    while parts < min(_MOST_PARTS, job.batch):
        parts *= 2
        change = RecipeChange("train.accumulate", parts, too_much, applied=True)
        if attempt(job.checkpointing, parts, job.sharded, [change]).fits:
            return tried[-1]
    if job.can_checkpoint and not job.checkpointing:
        change = RecipeChange("train.checkpointing", True, too_much, applied=True)
        cut = RecipeChange("train.accumulate", parts, too_much, applied=True)
        if (
            attempt(True, job.accumulate, job.sharded, [change]).fits
            or attempt(True, parts, job.sharded, [change, cut]).fits
        ):
            return tried[-1]
    if ranks > 1 and not job.sharded:
        shard = RecipeChange("parallel.mode", "fsdp", f"{too_much}: each rank keeps its part", applied=True)
        if attempt(job.checkpointing, job.accumulate, True, [shard]).fits:
            return tried[-1]
        again = RecipeChange("train.checkpointing", True, too_much, applied=True)
        if job.can_checkpoint and attempt(True, job.accumulate, True, [shard, again]).fits:
            return tried[-1]
    return plain


def exposed_exchange(
    nodes: int, machine: Machine, card: Card, work: TracedWork, device: float, sharded: bool = False
) -> Interval:
    """Seconds of a step: gradients on the wire that the backward pass does not hide, bucket by bucket. `device` is what
    the step takes on one card; `sharded` weights are gathered too."""
    ranks = machine.gpus * nodes
    if ranks == 1:
        return Interval.exact(0.0)
    if nodes > 1:
        rate = (machine.network_gbps or _UNKNOWN_NETWORK_GBPS) * 1e9 / 8 * _NETWORK_SHARE
    else:
        linked = card.nvlink_gb_s is not None and "only by bridge" not in card.note
        rate = (card.nvlink_gb_s or 0.0) * 1e9 * _NVLINK_SHARE if linked else card.pcie_gb_s * 1e9 * _PCIE_SHARE
    backward = device * (1 - work.forward_share)
    moved = work.gradient_bytes * (_SHARDED_TRAFFIC if sharded else 1.0)
    buckets = even_buckets(moved, device - backward, backward)

    def exposed(factor: float) -> float:
        return exposed_seconds(buckets, ranks, Link(rate * factor, _EXCHANGE_LATENCY_SECONDS), device)

    best, worst = (1.05, 0.7) if nodes > 1 else (1.6, 0.6)
    return Interval(exposed(1.0), exposed(best), exposed(worst)) + _STRAGGLING * (device * math.log2(ranks))


def _run_seconds(job: PlannedJob, step: Interval, device: Interval, ranks: int, work: TracedWork) -> Interval:
    steps = max(1, math.ceil(job.samples.count / (job.batch * ranks)))
    epochs = job.epochs
    if job.max_steps is not None:
        steps, epochs = min(steps, job.max_steps), max(1, math.ceil(job.max_steps / steps))
    share = job.samples.validation_count / max(1, job.samples.count)
    idle = Interval(*(max(0.0, s - d) for s, d in zip(_ends(step), _ends(device), strict=True)))
    validation = (device * work.forward_share + idle) * (steps * share)
    return RunParts(
        step,
        steps,
        epochs,
        startup=_STARTUP,
        validation=validation,
        validations=min(epochs, job.validations),
        checkpoint=Interval.around(_CHECKPOINT_SECONDS, 0.5),
        checkpoints=epochs,
    ).run_seconds()


def _layout_changes(job: PlannedJob, machine: Machine, feed: DataFeed, held: _Held) -> list[RecipeChange]:
    """Keys that make the recipe use the machine; they change no sample and no weight."""
    changes = []
    if machine.gpus * job.nodes > 1:
        if not held.setup.sharded:
            changes.append(RecipeChange("parallel.mode", "ddp", f"{machine.gpus} cards a machine", applied=True))
        changes.append(RecipeChange("parallel.devices", machine.gpus, f"{machine.gpus} cards a machine", applied=True))
    if job.nodes > 1:
        changes.append(RecipeChange("parallel.nodes", job.nodes, "as asked with --nodes", applied=True))
    if (
        job.workers is not None
        and machine.vcpus is not None
        and job.workers < int(feed.vcpus)
        and feed.limit == "decode"
    ):
        changes.append(RecipeChange("data.workers", "auto", f"{int(feed.vcpus)} vCPUs decode here", applied=True))
    return changes


def _advice(job: PlannedJob, option: Option, feed: DataFeed) -> list[RecipeChange]:
    """What would make it faster and is not ours to decide: other pixels, other arithmetic."""
    advice = []
    device, now = option.device_per_second.value, option.per_second.value
    if option.limit == "decode" and option.waiting_share > 0.05:
        resized = min(device, now / _RESIZED_SHARE) / now
        why = f"{feed.vcpus:g} vCPUs decode {feed.per_second.value:.0f} samples/s, the device takes {device:.0f}"
        advice.append(RecipeChange("data.path", "a pack of resized images", why, applied=False, gain=resized))
        each, automatic = int(feed.vcpus / option.machine.gpus), automatic_workers(option.machine, feed.vcpus)
        if each > automatic:
            why = f"{each} vCPUs for each card, of which {automatic} decode by default"
            more = min(device, now * each / automatic) / now
            advice.append(RecipeChange("data.workers", each, why, applied=False, gain=more))
    if option.limit in ("store", "network") and option.waiting_share > 0.05 and job.samples.store == "s3":
        why = "the store cannot keep up: copy the data once"
        advice.append(RecipeChange("data.stage", "auto", why, applied=False, gain=device / now))
    if (larger := _larger_batch(job, option)) is not None:
        advice.append(larger)
    if option.precision != "amp" and option.card.fp16_tensor_tflops is not None:
        gain = _gain(job, option, job.channels_last)
        advice.append(RecipeChange("train.precision", "auto", "16 bits on tensor cores", applied=False, gain=gain))
    if job.channels_last is False and option.precision == "amp":
        gain = _gain(job, option, channels_last=True)
        advice.append(RecipeChange("train.channels_last", True, "tensor cores want it", applied=False, gain=gain))
    return advice


def _larger_batch(job: PlannedJob, option: Option) -> RecipeChange | None:
    """Twice the batch as often as that is worth it and fits. The learning rate has to follow, so it is only advice."""
    if option.speed is None or option.limit != "device" or any(change.applied for change in option.changes):
        return None
    work, size, gain = job.works(option.precision == "amp", job.checkpointing), job.batch, 1.0
    while 2 * size <= option.largest_batch:
        part = math.ceil(2 * size / job.accumulate)
        told = speed_of(work, part, option.card, option.precision, job.channels_last, job.model, job.correction)
        larger = part / told.seconds.value / (math.ceil(job.batch / job.accumulate) / option.speed.seconds.value)
        if larger < _WORTH_DOUBLING * gain:
            break
        size, gain = 2 * size, larger
    if size == job.batch:
        return None
    why = f"steps of {job.batch} do not fill the card; the learning rate has to follow"
    return RecipeChange("data.batch_size", size, why, applied=False, gain=gain)


def _gain(job: PlannedJob, option: Option, channels_last: bool | None) -> float | None:
    """Of 16 bits in this layout, on the device alone."""
    if option.speed is None:
        return None
    work = job.works(True, job.checkpointing)
    speed = speed_of(work, job.batch, option.card, "amp", channels_last, job.model, job.correction)
    return option.speed.seconds.value / speed.seconds.value


def _notes(job: PlannedJob, machine: Machine, card: Card, feed: DataFeed) -> tuple[str, ...]:
    notes = []
    if machine.only_card:
        notes.append("the price is the card's alone; the machine around it comes on top")
    if machine.vcpus is None:
        notes.append(f"vCPUs not known: {feed.vcpus:g} assumed")
    if store_name(job.samples, machine, job.epochs) == "unknown":
        notes.append("local disk not known: 400 MB/s assumed")
    if job.samples.store == "s3" and machine.network_gbps is None:
        notes.append("network not known: 5 Gb/s assumed")
    if card.architecture in ("Pascal", "Volta"):
        notes.append(f"{card.architecture} needs a torch built for CUDA 12: builds for CUDA 13 leave it out")
    if not card.sure:
        notes.append(f"a figure of {card.name} is disputed: {card.note}")
    return tuple(notes)


def frontier(options: Sequence[Option]) -> list[Option]:
    """Those that no other beats in both hours and dollars, cheapest first."""
    priced = [each for each in options if each.fits and each.usd is not None]
    best, kept = math.inf, []
    for each in sorted(priced, key=lambda option: (option.usd.value if option.usd else 0.0, option.hours.value)):
        if each.hours.value < best:
            kept.append(each)
            best = each.hours.value
    return kept


def cheapest(options: Sequence[Option], deadline_hours: float | None) -> Option | None:
    """Of those that are done in time."""
    found = [e for e in options if e.fits and e.usd and (deadline_hours is None or e.hours.value <= deadline_hours)]
    return min(found, key=lambda each: (each.usd.value if each.usd else 0.0, each.hours.value), default=None)


def fastest(options: Sequence[Option], max_usd: float | None) -> Option | None:
    """Of those that cost no more; a card at home costs nothing that is known."""
    found = [e for e in options if e.fits and (max_usd is None or e.usd is None or e.usd.value <= max_usd)]
    return min(found, key=lambda each: (each.hours.value, each.usd.value if each.usd else 0.0), default=None)
