"""What the model knows of one training job on one machine: from a finished run, or sharper from a probe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flatout.decisions.caching import DECODED_EACH_EPOCH, FILLING, KEPT, CacheChoice
from flatout.diagnosis.machine_share import MachineShare, share_of
from flatout.diagnosis.model.device import DeviceTime, fit_device_time
from flatout.diagnosis.signals import Signals
from flatout.errors import BadFile, RunDirectoryError
from flatout.runs.steps import StepRow

_CONTENTION = 0.08
"""Each further core that decodes slows the others by up to this share (caches, hyper-threads), unless measured. Two
workers on two cores: 0.96 to 1.18 times as long, five pairs of 2026-11-18."""
_LEAST_SHORT_STEPS = 2
_BASE_SHARE = 0.05
"""Of forward and backward: what a step of no samples would take, where only one batch size was seen."""
_ABOVE_0 = {
    "batch_size",
    "epochs",
    "max_steps",
    "accumulate",
    "validate_every",
    "checkpoint_every_epochs",
    "checkpoint_every_steps",
    "cores",
    "threads",
    "samples_per_epoch",
    "world_size",
    "ranks_here",
    "residual",
}
_ERROR_PER_OTHER_CORE = 0.15
"""What other processes took of the machine while it was measured, they may give back or take twice of."""


@dataclass(frozen=True)
class Settings:
    """What a prediction can change."""

    batch_size: int
    workers: int
    epochs: int
    max_steps: int | None = None
    cache: str = "off"
    stage: str = "off"
    checkpointing: bool = False
    accumulate: int = 1
    validate_every: int = 1
    checkpoint_every_epochs: int = 1
    checkpoint_every_steps: int | None = None
    precision: str = "fp32"
    prefetch: int | None = None
    """Batches prepared ahead; None is enough for every worker."""

    @property
    def active_workers(self) -> int:
        """Workers that can be at work at once."""
        return self.workers if self.prefetch is None else min(self.workers, self.prefetch)


@dataclass(frozen=True)
class Calibration:
    """Seconds of one sample or one step, each measured once or fitted; everything else follows."""

    settings: Settings
    device: DeviceTime
    device_kind: str
    cores: float
    """Of a machine, shared by all ranks on it, less what other processes took when this was measured."""
    threads: int
    step_extra_seconds: float
    """Of a step besides forward and backward: optimizer, copy and what is left."""
    between_seconds: float
    """Between two steps: records, logs, and whatever of the measured run the parts below do not explain. Below 0 where
    they explain more than there was."""
    fetch_seconds: float
    """Of one sample, waiting for the store or the disk."""
    decode_seconds: float
    augment_seconds: float
    """Of one sample, with everything else that preparing it takes."""
    bytes_per_sample: float
    remote: bool
    fetchers: float
    """Batches that are fetched at once beside the workers; 0 where workers fetch themselves."""
    samples_per_epoch: int
    """Over all ranks."""
    startup_seconds: float
    validation_seconds: float
    checkpoint_seconds: float
    step_error: float
    """Relative, of the mean step: what repeated measurements differ by."""
    contention: float = _CONTENTION
    cold_extra_seconds: float = 0.0
    """What the first epoch took longer."""
    epoch_gap_seconds: float = 0.0
    residual: float = 1.0
    """Measured over modelled step; holds for changes that leave the limit where it is."""
    model_error: float = 0.0
    """By how much, as a share, the model alone missed the steps it was calibrated from: nothing is promised closer."""
    interval_factors: Mapping[str, float] = field(default_factory=dict)
    """By quantity (step, run, memory): how much wider intervals must be, by the outcomes of stored predictions."""
    limit: str = ""
    """What set the pace when this was measured."""
    request_seconds: float | None = None
    store_latency_seconds: float | None = None
    """Of the quickest requests."""
    quiet_extra_seconds: float | None = None
    """`step_extra_seconds` where no fetchers compete for the cores and the interpreter; None where none did."""
    host_seconds: float | None = None
    """Of a core, that a step takes beside an accelerator: the thread's CPU time, not what it waited for a core."""
    gradient_bytes: float | None = None
    buckets: tuple[tuple[float, float], ...] = ()
    link_latency_seconds: float = 0.0
    world_size: int = 1
    ranks_here: int = 1
    """Of these, on one machine."""
    threads_open: bool = False
    """Each rank computes with the cores that are its part."""
    batch_is_global: bool = False
    """The recipe sets the batch of all ranks together; settings.batch_size is one rank's part."""
    link_bytes_per_second: float | None = None
    """As it was measured between the ranks."""
    import_seconds: float = 0.0
    """Of the startup; each rank imports."""
    parameter_bytes: float | None = None
    state_copies: int = 2
    """Of the weights, that the optimizer keeps beside weights and gradients."""
    communication_seconds: float = 0.0
    usd_per_hour: float | None = None
    memory_bytes: float | None = None
    memory_per_sample_bytes: float | None = None
    measured_workers: int = 0
    source: str = "run"
    device_points: tuple[tuple[float, float], ...] = field(default=())
    batch_tokens: int | None = None
    """What a batch is cut by, where it is not samples; settings.batch_size is then the mean batch."""
    cache_choice: CacheChoice | None = None
    sample_state: str = DECODED_EACH_EPOCH
    """In which of the states of decisions/caching.py the seconds of a sample above were measured."""

    @property
    def machines(self) -> int:
        return max(1, round(self.world_size / self.ranks_here))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        """A BadFile where a value is missing, of another kind, or 0 where it cannot be; unknown names are left out."""
        try:
            given = {**values, "cache_choice": CacheChoice.from_dict(values.get("cache_choice"))}
            found = TypeAdapter(cls).validate_python(given)
        except (ValidationError, TypeError) as error:
            raise BadFile(f"{' '.join(str(error).split()):.200}") from None
        for name, value in {**vars(found.settings), **vars(found)}.items():
            wrong = isinstance(value, float) and not math.isfinite(value)
            if wrong or (name in _ABOVE_0 and value is not None and value <= 0):
                raise BadFile(f"{name} is {value!r}, which nothing was measured with")
        return found


def calibrate(signals: Signals, settings: Settings, share: MachineShare | None = None) -> Calibration:
    """From a run's own records. The short last batch of an epoch is a second point for the device's line.
    `share` is what its ranks share; without it, one rank has the machine."""
    share = share or share_of(signals)
    steps, ranks = signals.step.warm, max(1, signals.world_size)
    count, batch = max(1, signals.step.done), max(1.0, signals.batch / ranks)
    computing = signals.time.computing_seconds / count
    exchanging = (signals.ranks.communication_seconds or 0.0) if signals.ranks else 0.0
    warm_own = statistics.fmean(step.own_seconds for step in steps) - exchanging if steps else computing
    device = _device_time(signals, batch, computing, warm_own)
    extra = max(0.0, warm_own - device.step_seconds(batch, settings.checkpointing, settings.accumulate))
    load = signals.load
    work = 0.0 if load is None else (load.augment_seconds + load.collate_seconds) / batch
    return Calibration(
        settings=settings,
        device=device,
        device_kind=signals.device.kind,
        cores=max(1.0, share.cores - share.other_cores),
        threads=signals.host.threads,
        step_extra_seconds=extra,
        between_seconds=_between(signals),
        fetch_seconds=0.0 if load is None else load.fetch_seconds / batch,
        decode_seconds=0.0 if load is None else load.decode_seconds / batch,
        augment_seconds=work,
        bytes_per_sample=_bytes_per_sample(signals),
        remote=signals.input.remote,
        fetchers=_fetchers(signals),
        samples_per_epoch=_samples_per_epoch(signals),
        startup_seconds=signals.startup_seconds,
        validation_seconds=signals.time.part("validation") / max(1, signals.time.validations),
        checkpoint_seconds=signals.time.part("checkpoint") / max(1, signals.time.checkpoints),
        step_error=_step_error(steps) + _ERROR_PER_OTHER_CORE * share.other_cores,
        request_seconds=signals.input.store.request_seconds_p50 if signals.input.store else None,
        store_latency_seconds=signals.input.store.request_seconds_p05 if signals.input.store else None,
        quiet_extra_seconds=_quiet_extra(signals, extra) if signals.input.fetchers else None,
        host_seconds=_quiet_extra(signals, extra),
        usd_per_hour=signals.cost.usd_per_hour,
        memory_bytes=signals.device.memory_peak_bytes,
        measured_workers=signals.input.workers,
        cold_extra_seconds=_cold_extra(signals),
        epoch_gap_seconds=_epoch_gap(signals),
        batch_tokens=signals.recipe.batch_tokens,
        cache_choice=signals.input.cache_choice,
        sample_state=_sample_state(signals),
        **_ranks(signals, share, exchanging),
    )


def _ranks(signals: Signals, share: MachineShare, exchanging: float) -> dict[str, Any]:
    """What a calibration knows of ranks, and of what their number changes."""
    return {
        "gradient_bytes": signals.ranks.gradient_bytes if signals.ranks else None,
        "buckets": signals.ranks.buckets if signals.ranks else (),
        "link_latency_seconds": signals.ranks.latency_seconds if signals.ranks else 0.0,
        "world_size": signals.world_size,
        "communication_seconds": exchanging,
        "ranks_here": share.ranks_here,
        "threads_open": share.threads_open,
        "batch_is_global": share.batch_is_global,
        "link_bytes_per_second": share.link_bytes_per_second,
        "import_seconds": share.import_seconds,
        "parameter_bytes": share.parameter_bytes,
        "state_copies": share.state_copies,
    }


def _between(signals: Signals) -> float:
    """What closes the sum of a measured run, for each of its steps: with it, the parts add up to the wall clock."""
    time, epochs = signals.time, len({step.epoch for step in signals.steps})
    explained = signals.startup_seconds + time.part("validation") + time.part("checkpoint")
    explained += _cold_extra(signals) + _epoch_gap(signals) * epochs + signals.step.seconds * signals.step.done
    rest = (time.wall_seconds - explained) / max(1, signals.step.done)
    return max(rest, -0.5 * signals.step.seconds) if time.wall_seconds > 0 else 0.0  # a log that does not say


def _sample_state(signals: Signals) -> str:
    """Of the warm steps: where there is but one epoch, it fills the cache, unless an earlier run had filled it."""
    if not signals.input.fills_cache:
        return DECODED_EACH_EPOCH
    found_kept = (signals.input.cache_hits or 0) > (signals.input.cache_misses or 0)
    return KEPT if found_kept or len({step.epoch for step in signals.steps}) > 1 else FILLING


def _device_time(signals: Signals, batch: float, computing: float, warm_own: float) -> DeviceTime:
    """An emulated device is what it is set to; else full and short batches, where an epoch ends with a short one."""
    forward, backward = signals.time.part("forward"), signals.time.part("backward")
    share = forward / (forward + backward) if forward + backward > 0 else 1 / 3
    if signals.recipe.checkpointing:  # the recomputed forward pass is counted as backward
        share = forward / backward if backward > 0 else 1 / 3
    if signals.device.emulated_base_seconds is not None and signals.device.emulated_seconds_per_sample is not None:
        return DeviceTime(signals.device.emulated_base_seconds, signals.device.emulated_seconds_per_sample, share)
    points = [(batch, min(computing, warm_own))]
    whole = signals.recipe.batch_size * signals.world_size
    short = [step for step in signals.step.warm if step.samples < 0.8 * whole]
    full = [step for step in signals.step.warm if step.samples == whole]
    if len(short) >= _LEAST_SHORT_STEPS and full and signals.recipe.batch_tokens is None:
        around = statistics.median(step.own_seconds for step in full) - min(computing, warm_own)
        points = [
            (signals.recipe.batch_size, statistics.median(step.own_seconds for step in full) - around),
            (
                statistics.fmean(step.samples for step in short) / signals.world_size,
                statistics.median(step.own_seconds for step in short) - around,
            ),
        ]
    device = fit_device_time(points, share)
    if len(points) == 1:  # nothing tells base and samples apart
        base = _BASE_SHARE * points[0][1]
        device = replace(device, base_seconds=base, seconds_per_sample=(points[0][1] - base) / points[0][0])
    return replace(device, base_seconds=max(0.0, device.base_seconds) / signals.recipe.accumulate)


def _quiet_extra(signals: Signals, extra: float) -> float | None:
    """Beside an accelerator, all that the loop does by itself is its thread's CPU time: the rest it was kept waiting,
    for a core or for the interpreter."""
    known = [step.cpu_seconds for step in signals.step.warm if step.cpu_seconds is not None]
    return min(extra, statistics.fmean(known)) if known and signals.device.kind != "cpu" else None


def _fetchers(signals: Signals) -> float:
    """As many as were at work on average, where the store set the pace: its own limits count in."""
    if signals.input.fetchers and signals.load is not None and signals.step.starved and signals.fetch_bound:
        return max(1.0, min(float(signals.input.fetchers), signals.load.fetch_seconds / signals.step.seconds))
    return float(signals.input.fetchers)


def _cold_extra(signals: Signals) -> float:
    if signals.step.cold_ratio is None or signals.step.cold_ratio <= 1.3:
        return 0.0
    first = [step for step in signals.steps if step.epoch == signals.steps[0].epoch]
    return sum(max(0.0, step.wait_seconds - signals.step.wait_seconds) for step in first)


def _epoch_gap(signals: Signals) -> float:
    starts = [step for step in signals.steps if step.batch_index == 0 and step.epoch != signals.steps[0].epoch]
    return (
        max(0.0, statistics.fmean(step.wait_seconds for step in starts) - signals.step.wait_seconds) if starts else 0.0
    )


def _bytes_per_sample(signals: Signals) -> float:
    loaded = signals.input.samples_loaded
    return (signals.input.bytes_read or 0.0) / loaded if loaded else 0.0


def _samples_per_epoch(signals: Signals) -> int:
    totals: dict[int, int] = {}
    for step in signals.steps:
        totals[step.epoch] = totals.get(step.epoch, 0) + step.samples
    most = max(totals.values(), default=signals.recipe.batch_size)
    if most <= 0:
        raise RunDirectoryError("by the records of this run its steps have no samples; they are damaged, train again")
    return most


def _step_error(steps: tuple[StepRow, ...]) -> float:
    """Standard error of the mean step, never below what two equal runs differ by."""
    if len(steps) < 3:
        return 0.15
    seconds = [step.seconds for step in steps]
    error = statistics.stdev(seconds) / len(seconds) ** 0.5 / max(statistics.fmean(seconds), 1e-9)
    return float(min(0.3, max(0.05, 2 * error)))
