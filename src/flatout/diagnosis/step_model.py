"""A step of a changed job: compute, loading, the cores both share, the exchange between ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flatout.decisions.caching import DECODED_EACH_EPOCH, FILLING, KEPT
from flatout.diagnosis.calibration import Calibration, Settings
from flatout.diagnosis.changes import WhatIfJob
from flatout.diagnosis.model.communication import Bucket, Link, even_buckets, exposed_seconds
from flatout.diagnosis.model.input import Loading, PreparationCosts, batch_seconds, batches_per_second

_LOCAL_READ_SECONDS = 50e-6  # of one sample from local disk, mostly the page cache
_MEMORY_READ_SECONDS = 30e-6  # of one decoded sample
_16_BIT_FACTOR = 0.6  # of a GPU's compute; wide interval, measured by `tune`
_WAITING_SHARE = 0.10  # of a step: less is no limit, as for the rules of a verdict
_LOOPBACK_BYTES_PER_SECOND = 1e9  # gloo between two processes of one machine, where no link was measured
_EXCHANGE_SECONDS = 0.002  # of each step besides bytes: counts and sums that ranks tell each other
_THREAD_SCALING = 0.8  # twice the threads compute 2 ** 0.8 times as fast


@dataclass(frozen=True)
class StepTime:
    """Of one rank's step."""

    seconds: float
    limit: str
    """What sets its pace: compute, loading, storage, cores (loading and computing share them) or exchange."""


def steps_per_epoch(calibration: Calibration, job: WhatIfJob) -> int:
    return math.ceil(calibration.samples_per_epoch / (job.settings.batch_size * job.ranks))


def mean_batch(calibration: Calibration, job: WhatIfJob) -> float:
    """Of one rank. The last batch of an epoch is short: steps are those of the mean batch."""
    return calibration.samples_per_epoch / steps_per_epoch(calibration, job) / job.ranks


def ranks_here(calibration: Calibration, job: WhatIfJob) -> int:
    """Ranks that share a machine: as many machines as were measured."""
    return max(1, math.ceil(job.ranks / calibration.machines))


def modelled_step(calibration: Calibration, job: WhatIfJob, first_epoch: bool = False) -> StepTime:
    """In general of a warm step, by the model alone."""
    settings, batch, here = job.settings, mean_batch(calibration, job), ranks_here(calibration, job)
    exchange = _communication(calibration, job)
    own = _own_seconds(calibration, job) + exchange
    costs = sample_costs(calibration, job, first_epoch)
    cores_taken = here * (_host_seconds(calibration, job, own) + batch * costs.decode_seconds) / calibration.cores
    if settings.workers == 0:
        load = batch_seconds(batch, costs)
        seconds = max(own + load, cores_taken)
        return StepTime(seconds, "cores" if cores_taken > own + load else "loading" if load > own else "compute")
    loading = Loading(settings.active_workers, calibration.cores / here, fetchers=calibration.fetchers)
    rate = batches_per_second(batch, costs, loading)
    limits = {
        "loading": 1 / rate if rate else math.inf,
        "cores": cores_taken,
        "storage": _storage_seconds(calibration, job, here),
    }
    slowest = max(limits, key=lambda name: limits[name])
    seconds = max(own, limits[slowest])
    if seconds - own > _WAITING_SHARE * seconds:
        return StepTime(seconds, slowest)
    return StepTime(seconds, "exchange" if exchange > own / 2 else "compute")


def _storage_seconds(calibration: Calibration, job: WhatIfJob, here: int) -> float:
    if not job.storage_bytes_per_second:
        return 0.0
    return here * mean_batch(calibration, job) * calibration.bytes_per_sample / job.storage_bytes_per_second


def _host_seconds(calibration: Calibration, job: WhatIfJob, own: float) -> float:
    """Core seconds of one rank's step beside loading."""
    if calibration.device_kind != "cpu":
        extra = calibration.step_extra_seconds
        return extra if calibration.host_seconds is None else min(extra, calibration.host_seconds)
    return own * min(_threads(calibration, job), calibration.cores)


def _threads(calibration: Calibration, job: WhatIfJob) -> float:
    if not calibration.threads_open or job.ranks == calibration.world_size:
        return calibration.threads
    return max(1.0, calibration.threads * calibration.ranks_here / ranks_here(calibration, job))


def _own_seconds(calibration: Calibration, job: WhatIfJob) -> float:
    """Forward, backward and what else the training thread does by itself."""
    return _computing_seconds(calibration, job) + _extra_seconds(calibration, job.settings)


def _computing_seconds(calibration: Calibration, job: WhatIfJob) -> float:
    settings, is_emulated = job.settings, calibration.device_kind == "emulated"
    seconds = job.device.step_seconds(
        mean_batch(calibration, job), settings.checkpointing and not is_emulated, settings.accumulate
    )
    if settings.precision != calibration.settings.precision and calibration.device_kind == "cuda":
        seconds *= _16_BIT_FACTOR if settings.precision != "fp32" else 1 / _16_BIT_FACTOR
    if calibration.device_kind == "cpu":
        seconds *= (calibration.threads / _threads(calibration, job)) ** _THREAD_SCALING
    return seconds


def _extra_seconds(calibration: Calibration, settings: Settings) -> float:
    """Quiet where warm epochs ask the store for nothing any more."""
    measured, quiet = calibration.settings, calibration.quiet_extra_seconds
    pairs = ((settings.stage, measured.stage), (settings.cache, measured.cache))
    if quiet is not None and settings.epochs > 1 and any(new != "off" and old == "off" for new, old in pairs):
        return quiet
    return calibration.step_extra_seconds


def _communication(calibration: Calibration, job: WhatIfJob) -> float:
    """Exposed. As it was measured where neither link nor ranks change; else by the recursion over buckets."""
    if job.ranks < 2:
        return 0.0
    if job.ranks == calibration.world_size and job.link_bits_per_second is None:
        return calibration.communication_seconds
    exchanged = calibration.gradient_bytes or calibration.parameter_bytes
    if exchanged is None:
        return calibration.communication_seconds or _EXCHANGE_SECONDS
    computing = _computing_seconds(calibration, job)
    forward = computing * job.device.forward_share
    buckets = even_buckets(exchanged, forward, computing - forward)
    if calibration.buckets:  # as this model fills them, stretched to the changed step
        stretch = computing / max(calibration.buckets[-1][1], 1e-9)
        buckets = [Bucket(size, ready * stretch) for size, ready in calibration.buckets]
    rate = calibration.link_bytes_per_second or _LOOPBACK_BYTES_PER_SECOND
    if job.link_bits_per_second is not None:
        rate = job.link_bits_per_second / 8
    spoken = _EXCHANGE_SECONDS if calibration.world_size < 2 else 0.0
    return spoken + exposed_seconds(buckets, job.ranks, Link(rate, calibration.link_latency_seconds), computing)


def sample_costs(calibration: Calibration, job: WhatIfJob, first_epoch: bool = False) -> PreparationCosts:
    """Fetching and working on one sample, once caches and stage are warm or while the first epoch fills them."""
    fetch, decode, augment = calibration.fetch_seconds, calibration.decode_seconds, calibration.augment_seconds
    settings = job.settings
    if job.latency_seconds is not None and calibration.request_seconds:
        latency, usual = calibration.store_latency_seconds or calibration.request_seconds, calibration.request_seconds
        fetch *= max(usual + job.latency_seconds - latency, 1e-4) / usual
    if settings.stage != "off" and calibration.remote and settings.epochs > 1:
        fetch = min(fetch, _LOCAL_READ_SECONDS)
    if calibration.cache_choice is not None and calibration.cache_choice.is_measured:
        fetch, decode = _by_measured_costs(calibration, _sample_state(settings, first_epoch), fetch, decode + augment)
        augment = 0.0
    elif settings.cache != "off" and calibration.settings.cache == "off" and settings.epochs > 1:
        fetch, decode = min(fetch, _MEMORY_READ_SECONDS), 0.0
    active = settings.active_workers * ranks_here(calibration, job)
    before = calibration.measured_workers * calibration.ranks_here
    crowded = _crowding(calibration, active) / _crowding(calibration, before)
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


def cold(calibration: Calibration, job: WhatIfJob) -> WhatIfJob:
    """The first epoch finds neither stage nor cache. What filling costs is known only where the loader measured it."""
    measured, choice = calibration.settings, calibration.cache_choice
    fills_unmeasured = measured.cache == "off" and not (choice is not None and choice.is_measured)
    settings = replace(
        job.settings,
        stage="off" if measured.stage == "off" else job.settings.stage,
        cache="off" if fills_unmeasured else job.settings.cache,
    )
    return replace(job, settings=settings)
