"""What a change would buy: the model's answer with an interval, before a dollar is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.decisions.caching import DECODED_EACH_EPOCH, FILLING, KEPT
from flatout.decisions.choice import unless_open
from flatout.diagnosis.calibration import Calibration, Settings
from flatout.diagnosis.model.communication import Bucket, Link, even_buckets, exposed_seconds
from flatout.diagnosis.model.input import Loading, PreparationCosts, batch_seconds, batches_per_second
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.memory import fit_memory
from flatout.diagnosis.model.run import RunParts, break_even_epochs
from flatout.diagnosis.model.step import serial_step_seconds, step_seconds
from flatout.errors import ConfigError, RunDirectoryError
from flatout.units import parse_bits_per_second, parse_seconds

_LOCAL_READ_SECONDS = 50e-6  # of one sample from local disk, mostly the page cache
_MEMORY_READ_SECONDS = 30e-6  # of one decoded sample
_16_BIT_FACTOR = 0.6  # of a GPU's compute; wide interval, measured by `tune`

OTHER_BATCH = "data.batch_tokens"
GLOBAL_BATCH = "data.global_batch"
# key of a recipe -> field of Settings
SETTINGS = {
    "data.batch_size": "batch_size",
    "data.workers": "workers",
    "train.epochs": "epochs",
    "train.max_steps": "max_steps",
    "data.cache": "cache",
    "data.stage": "stage",
    "data.prefetch": "prefetch",
    "train.checkpointing": "checkpointing",
    "train.accumulate": "accumulate",
    "train.precision": "precision",
    "validate.every_epochs": "validate_every",
    "checkpoint.every_epochs": "checkpoint_every_epochs",
    "checkpoint.every_steps": "checkpoint_every_steps",
}
# not in a recipe: what lies outside of the job
WORLD = (
    "storage.latency",
    "storage.bandwidth",
    "emulated.base_seconds",
    "emulated.seconds_per_sample",
    "link",
    "ranks",
    "cost.instance",
)


@dataclass(frozen=True)
class Surroundings:
    """What surrounds the job; None is as it was measured."""

    latency_seconds: float | None = None
    storage_bytes_per_second: float | None = None
    link_bits_per_second: float | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class Prediction:
    """Seconds of a warm step, a warm epoch and the whole run; `memory` and `usd` are None where nothing is known.
    `break_even_epochs` says from how many epochs on staging or caching pays, where that is what changes."""

    changes: Mapping[str, Any]
    step: Interval
    samples_per_second: Interval
    epoch: Interval
    run: Interval
    usd: Interval | None
    memory: Interval | None
    limit: str
    """What sets the pace: compute, loading or storage."""
    break_even_epochs: int | None = None

    def to_dict(self) -> dict[str, Any]:
        parts = {
            "step": self.step,
            "samples_per_second": self.samples_per_second,
            "epoch": self.epoch,
            "run": self.run,
            "usd": self.usd,
            "memory": self.memory,
        }
        told = {name: None if each is None else each.to_dict() for name, each in parts.items()}
        more = {"limit": self.limit, "break_even_epochs": self.break_even_epochs}
        return {"changes": dict(self.changes), **more, **told}


def predict(calibration: Calibration, changes: Mapping[str, Any]) -> Prediction:
    """The job with these changes. A key the model knows nothing of is refused: no answer is better than a guess."""
    settings, world, device = _apply(calibration, changes)
    changed = replace(calibration, device=device)
    seconds, limit = _corrected(changed, settings, world)
    cold, _ = _corrected(changed, _cold(settings, calibration), world, first_epoch=True)
    if seconds <= 0:
        raise RunDirectoryError("by the records of this run a step takes no time; they are damaged: train it again")
    # a step of no time would be any number of samples a second: 20 times as fast is the limit of any promise
    error = min(0.95, calibration.step_error + _extrapolation(calibration, settings, world))
    step = Interval.around(seconds, error)
    parts = _run_parts(changed, settings, step, Interval.around(cold, error))
    ranks = world.ranks or calibration.world_size
    return Prediction(
        changes,
        step,
        Interval.exact(_mean_batch(calibration, settings) * ranks) / step,
        parts.epoch_seconds(),
        parts.run_seconds(),
        None if calibration.usd_per_hour is None else parts.run_seconds() * (calibration.usd_per_hour / 3600),
        _memory(calibration, settings),
        limit,
    )


def _apply(calibration: Calibration, changes: Mapping[str, Any]) -> tuple[Settings, Surroundings, Any]:
    settings, world, device = calibration.settings, Surroundings(), calibration.device
    tokens = calibration.batch_tokens
    for key, value in changes.items():
        if key == (OTHER_BATCH if tokens is None else "data.batch_size"):
            other = "data.batch_size" if tokens is None else OTHER_BATCH
            raise ConfigError(f"no prediction for {key}: the batches of this run are cut by {other}; change that")
        if key == OTHER_BATCH and tokens is not None:
            settings = replace(settings, batch_size=max(1, round(calibration.settings.batch_size * value / tokens)))
        elif key == GLOBAL_BATCH:
            settings = replace(settings, batch_size=max(1, round(value / calibration.world_size)))
        elif key in SETTINGS:
            chosen: Any = unless_open(value)
            settings = replace(settings, **{SETTINGS[key]: chosen})
        elif key == "storage.latency":
            world = replace(world, latency_seconds=parse_seconds(value))
        elif key == "storage.bandwidth":
            world = replace(world, storage_bytes_per_second=parse_bits_per_second(value) / 8)
        elif key == "link":
            world = replace(world, link_bits_per_second=parse_bits_per_second(value))
        elif key in ("ranks", "parallel.devices"):
            world = replace(world, ranks=int(value))
        elif key in ("emulated.base_seconds", "emulated.seconds_per_sample"):
            device = replace(device, **{key.partition(".")[2]: float(value)})
        elif not key.startswith("cost."):  # priced by the ledger, where the whole recipe is known
            known = ", ".join(sorted({*SETTINGS, *WORLD, OTHER_BATCH, GLOBAL_BATCH}))
            raise ConfigError(f"no prediction for {key}: the model knows nothing of it; it knows {known}")
    return _with_tier(calibration, settings, changes), world, device


def _with_tier(calibration: Calibration, settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The tier that the loader would choose for the changed job, where it said how it chooses."""
    choice = calibration.cache_choice
    if choice is None or not changes:
        return settings
    return replace(
        settings, cache=choice.tier_for(changes.get("data.cache", choice.wanted), _epochs(calibration, settings))
    )


def _epochs(calibration: Calibration, settings: Settings) -> int:
    """Begun at least."""
    if settings.max_steps is None:
        return settings.epochs
    return min(settings.epochs, math.ceil(settings.max_steps / _steps_per_epoch(calibration, settings)))


def _steps_per_epoch(calibration: Calibration, settings: Settings) -> int:
    return math.ceil(calibration.samples_per_epoch / settings.batch_size)


def with_residual(calibration: Calibration, measured_step_seconds: float) -> Calibration:
    """Held against the steps it was calibrated from: what the model misses of them it would miss again."""
    seconds, limit = _step(calibration, calibration.settings, Surroundings())
    ratio = measured_step_seconds / seconds if seconds > 0 else 1.0
    return replace(calibration, residual=min(1.4, max(0.7, ratio)), limit=limit)


def _corrected(
    calibration: Calibration, settings: Settings, world: Surroundings, first_epoch: bool = False
) -> tuple[float, str]:
    seconds, limit = _step(calibration, settings, world, first_epoch)
    return (seconds * calibration.residual if limit == calibration.limit else seconds), limit


def _mean_batch(calibration: Calibration, settings: Settings) -> float:
    """The last batch of an epoch is short: steps are those of the mean batch."""
    return calibration.samples_per_epoch / _steps_per_epoch(calibration, settings)


def _step(
    calibration: Calibration, settings: Settings, world: Surroundings, first_epoch: bool = False
) -> tuple[float, str]:
    """Seconds of a step, in general a warm one, and what sets its pace."""
    own = _own_seconds(calibration, settings, world)
    costs = _sample_costs(calibration, settings, world, first_epoch)
    batch = _mean_batch(calibration, settings)
    if settings.workers == 0:
        load = batch_seconds(batch, costs)
        return serial_step_seconds(own, load), "loading" if load > own else "compute"
    loading = Loading(settings.active_workers, calibration.cores, fetchers=calibration.fetchers)
    storage = 0.0
    if world.storage_bytes_per_second:
        storage = batch * calibration.bytes_per_sample / world.storage_bytes_per_second
    host = (
        own * min(calibration.threads, calibration.cores)
        if calibration.device_kind == "cpu"
        else calibration.step_extra_seconds
    )
    shared = (host + batch * costs.decode_seconds) / calibration.cores  # loading and computing take turns on the cores
    limits = {"loading": max(1 / batches_per_second(batch, costs, loading), shared), "storage": storage, "compute": own}
    return step_seconds(own, 0.0, max(limits.values())), max(limits, key=lambda name: limits[name])


def _own_seconds(calibration: Calibration, settings: Settings, world: Surroundings) -> float:
    computing = calibration.device.step_seconds(
        _mean_batch(calibration, settings),
        settings.checkpointing and calibration.device_kind != "emulated",
        settings.accumulate,
    )
    if settings.precision != calibration.settings.precision and calibration.device_kind == "cuda":
        computing *= _16_BIT_FACTOR if settings.precision != "fp32" else 1 / _16_BIT_FACTOR
    extra = calibration.step_extra_seconds
    if calibration.quiet_extra_seconds is not None and _stays_local(calibration, settings):
        extra = calibration.quiet_extra_seconds
    return computing + extra + _communication(calibration, computing, world)


def _stays_local(calibration: Calibration, settings: Settings) -> bool:
    """Whether warm epochs ask the store for nothing any more."""
    measured, again = calibration.settings, settings.epochs > 1
    return again and any(
        new != "off" and old == "off"
        for new, old in ((settings.stage, measured.stage), (settings.cache, measured.cache))
    )


def _communication(calibration: Calibration, computing: float, world: Surroundings) -> float:
    ranks = world.ranks or calibration.world_size
    if ranks < 2:
        return 0.0
    if world.link_bits_per_second is None or calibration.gradient_bytes is None:
        return calibration.communication_seconds
    forward = computing * calibration.device.forward_share
    buckets = even_buckets(calibration.gradient_bytes, forward, computing - forward)
    if calibration.buckets:  # as this model fills them, stretched to the changed step
        stretch = computing / max(calibration.buckets[-1][1], 1e-9)
        buckets = [Bucket(size, ready * stretch) for size, ready in calibration.buckets]
    link = Link(world.link_bits_per_second / 8, calibration.link_latency_seconds)
    return exposed_seconds(buckets, ranks, link, computing)


def _sample_costs(
    calibration: Calibration, settings: Settings, world: Surroundings, first_epoch: bool = False
) -> PreparationCosts:
    """Fetching and working on one sample, once caches and stage are warm or while the first epoch fills them."""
    fetch, decode, augment = calibration.fetch_seconds, calibration.decode_seconds, calibration.augment_seconds
    if world.latency_seconds is not None and calibration.request_seconds:
        latency, usual = calibration.store_latency_seconds or calibration.request_seconds, calibration.request_seconds
        fetch *= max(usual + world.latency_seconds - latency, 1e-4) / usual
    if settings.stage != "off" and calibration.remote and settings.epochs > 1:
        fetch = min(fetch, _LOCAL_READ_SECONDS)
    if calibration.cache_choice is not None and calibration.cache_choice.is_measured:
        fetch, decode = _by_measured_costs(calibration, _sample_state(settings, first_epoch), fetch, decode + augment)
        augment = 0.0
    elif settings.cache != "off" and calibration.settings.cache == "off" and settings.epochs > 1:
        fetch, decode = min(fetch, _MEMORY_READ_SECONDS), 0.0
    crowded = _crowding(calibration, settings.active_workers) / _crowding(calibration, calibration.measured_workers)
    return PreparationCosts((decode + augment) * crowded, latency_seconds=max(fetch, 1e-9))


def _sample_state(settings: Settings, first_epoch: bool) -> str:
    if settings.cache == "off":
        return DECODED_EACH_EPOCH
    return FILLING if first_epoch or settings.epochs <= 1 else KEPT


def _by_measured_costs(calibration: Calibration, state: str, fetch: float, work: float) -> tuple[float, float]:
    """Seconds of fetching and of working on one sample in another state than the one they were measured in.

    The loader timed all states alone on one core. Of local files, what a busy machine makes of one state it makes of
    the others. Of a store, waiting is kept apart: only the work changes, until nothing is fetched any more."""
    choice, before = calibration.cache_choice, calibration.sample_state
    if choice is None or state == before:
        return fetch, work
    if not calibration.remote:
        factor = choice.seconds(state) / choice.seconds(before)
        return fetch * factor, work * factor
    work = max(0.0, work + choice.seconds(state) - choice.seconds(before))
    return (min(fetch, _MEMORY_READ_SECONDS), choice.seconds(KEPT)) if state == KEPT else (fetch, work)


def _crowding(calibration: Calibration, workers: int) -> float:
    """How many times longer a worker takes when `workers` are at work at once."""
    busy = min(max(workers, 1), calibration.cores)
    return 1 + calibration.contention * (busy - 1) / max(1.0, calibration.cores - 1)


def _cold(settings: Settings, calibration: Calibration) -> Settings:
    """The first epoch finds neither stage nor cache. What filling costs is known only where the loader measured it."""
    measured, choice = calibration.settings, calibration.cache_choice
    fills_unmeasured = measured.cache == "off" and not (choice is not None and choice.is_measured)
    return replace(
        settings,
        stage="off" if measured.stage == "off" else settings.stage,
        cache="off" if fills_unmeasured else settings.cache,
    )


def _extrapolation(calibration: Calibration, settings: Settings, world: Surroundings) -> float:
    """How much surer the model is of what it has seen than of what it has not."""
    measured, error = calibration.settings, 0.0
    if settings.workers != measured.workers:
        error += 0.10
    if settings.batch_size != measured.batch_size:
        known = calibration.device_kind == "emulated" or len(calibration.device_points) > 1
        error += (0.03 if known else 0.06) * abs(math.log2(settings.batch_size / measured.batch_size))
    if settings.cache != measured.cache or settings.stage != measured.stage:
        error += 0.06
    if world != Surroundings():
        error += 0.08
    if settings.checkpointing != measured.checkpointing or settings.accumulate != measured.accumulate:
        error += 0.06
    if settings.precision != measured.precision:
        error += 0.3
    return error


def _run_parts(calibration: Calibration, settings: Settings, step: Interval, cold: Interval) -> RunParts:
    steps, epochs = _steps_per_epoch(calibration, settings), _epochs(calibration, settings)
    total = min(epochs * steps, settings.max_steps or epochs * steps)
    saves = math.ceil(epochs / settings.checkpoint_every_epochs)
    saves += total // settings.checkpoint_every_steps if settings.checkpoint_every_steps else 0
    between = step + calibration.between_seconds
    return RunParts(
        step=between,
        steps_per_epoch=steps if total == epochs * steps else math.ceil(total / epochs),
        epochs=epochs,
        startup=Interval.around(calibration.startup_seconds, 0.15),
        cold_extra=Interval.exact(_cold_extra(calibration, settings, steps, cold.value - step.value)),
        epoch_gap=Interval.exact(calibration.epoch_gap_seconds),
        validation=Interval.around(calibration.validation_seconds, 0.1),
        validations=math.ceil(epochs / settings.validate_every) if calibration.validation_seconds else 0,
        checkpoint=Interval.around(calibration.checkpoint_seconds, 0.25),
        checkpoints=saves,
    )


def _cold_extra(calibration: Calibration, settings: Settings, steps: int, modelled: float) -> float:
    """As measured where the tiers stay as they are, else what the first epoch lacks."""
    measured = calibration.settings
    same = (settings.cache, settings.stage) == (measured.cache, measured.stage)
    if same and calibration.sample_state != FILLING:
        return calibration.cold_extra_seconds
    return max(0.0, modelled) * steps


def _memory(calibration: Calibration, settings: Settings) -> Interval | None:
    peak, per_sample = calibration.memory_bytes, calibration.memory_per_sample_bytes
    if peak is None:
        return None
    if per_sample is None:
        return Interval.exact(peak) if settings.batch_size == calibration.settings.batch_size else None
    measured = calibration.settings.batch_size
    fitted = fit_memory((0, max(0.0, peak - per_sample * measured)), (measured, peak))
    return Interval.around(fitted.peak_bytes(settings.batch_size, settings.checkpointing), 0.1)


def cache_break_even(calibration: Calibration, changes: Mapping[str, Any]) -> int | None:
    """From how many epochs on it pays to keep decoded samples, by what the loader measured."""
    choice = calibration.cache_choice
    if choice is None or choice.pays_after_epochs is None or changes.get("data.cache", "off") == "off":
        return None
    return math.floor(choice.pays_after_epochs) + 1


def staging_break_even(calibration: Calibration, changes: Mapping[str, Any]) -> int | None:
    """From how many epochs on it pays to read a copy; the copy is made while the first epoch trains."""
    if not calibration.remote or calibration.settings.stage != "off" or changes.get("data.stage", "off") == "off":
        return None
    remote, local = (predict(calibration, {**changes, "data.stage": stage}).epoch.value for stage in ("off", "auto"))
    return break_even_epochs(remote, remote, local, remote - local)
