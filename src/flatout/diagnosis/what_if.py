"""What a change would buy: the model's answer with an interval, before a dollar is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.decisions.caching import FILLING
from flatout.decisions.choice import unless_open
from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.changes import WhatIfJob, changed_job, measured_job
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.memory import MemoryUse
from flatout.diagnosis.model.run import RunParts, break_even_epochs
from flatout.diagnosis.step_model import StepTime, cold, modelled_step, ranks_here, sample_costs, steps_per_epoch
from flatout.errors import RunDirectoryError
from flatout.html_view import html_of

LEVEL = 0.8
"""What share of outcomes intervals are meant to hold."""
_LEAST_ERROR = 0.02  # two equal runs never take the same time
_MOST_ERROR = 0.95  # a step of no time would be any number of samples a second: 20 times as fast is the limit
_PROCESS_BYTES = 350e6  # interpreter, torch and loader before the first batch
_RANK_START_SECONDS = 1.5  # to meet, to measure the link and to check that weights are equal


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
    """What sets the pace: compute, loading, storage, cores or exchange."""
    break_even_epochs: int | None = None
    notes: tuple[str, ...] = ()
    """What the figures do not say: sentences for people."""
    whole_epoch: Interval | None = None
    """With its validation, checkpoints and share of what the first takes longer: what tables call the actual epoch."""
    _repr_html_ = html_of

    def to_dict(self) -> dict[str, Any]:
        parts = {
            "step": self.step,
            "samples_per_second": self.samples_per_second,
            "epoch": self.epoch,
            "whole_epoch": self.whole_epoch,
            "run": self.run,
            "usd": self.usd,
            "memory": self.memory,
        }
        told = {name: None if each is None else each.to_dict() for name, each in parts.items()}
        more = {"limit": self.limit, "break_even_epochs": self.break_even_epochs, "notes": list(self.notes)}
        return {"changes": dict(self.changes), "level": LEVEL, **more, **told}


def predict(calibration: Calibration, changes: Mapping[str, Any]) -> Prediction:
    """The job with these changes. A key the model knows nothing of is refused: no answer is better than a guess."""
    job = _with_tier(calibration, changed_job(calibration, changes), changes)
    warm = _corrected(calibration, job)
    if warm.seconds <= 0:
        raise RunDirectoryError("by the records of this run a step takes no time; they are damaged: train it again")
    first = _corrected(calibration, cold(calibration, job), first_epoch=True)
    error = _error(calibration, "step", calibration.step_error + _extrapolation(calibration, job))
    step = Interval.around(warm.seconds, error)
    parts = _run_parts(calibration, job, step, first.seconds)
    run = _widened(calibration, "run", parts.run_seconds())
    batch = calibration.samples_per_epoch / steps_per_epoch(calibration, job)
    return Prediction(
        changes,
        step,
        Interval.exact(batch) / step,
        _widened(calibration, "run", parts.epoch_seconds()),
        run,
        None if calibration.usd_per_hour is None else run * (calibration.usd_per_hour / 3600),
        _memory(calibration, job),
        warm.limit,
        whole_epoch=_widened(calibration, "run", parts.whole_epoch_seconds()),
    )


def with_residual(calibration: Calibration, measured_step_seconds: float) -> Calibration:
    """Held against the steps it was calibrated from: what the model misses of them it would miss again, and what it
    missed is the least that it may miss elsewhere."""
    bare = modelled_step(calibration, measured_job(calibration))
    told = 0 < bare.seconds < math.inf and measured_step_seconds > 0
    ratio = measured_step_seconds / bare.seconds if told else 1.0
    missed = abs(1 - 1 / ratio)
    return replace(calibration, residual=ratio, limit=bare.limit, model_error=max(calibration.model_error, missed))


def _corrected(calibration: Calibration, job: WhatIfJob, first_epoch: bool = False) -> StepTime:
    step = modelled_step(calibration, job, first_epoch)
    return replace(step, seconds=step.seconds * calibration.residual) if step.limit == calibration.limit else step


def _with_tier(calibration: Calibration, job: WhatIfJob, changes: Mapping[str, Any]) -> WhatIfJob:
    """The tier that the loader would choose for the changed job, where it said how it chooses."""
    choice = calibration.cache_choice
    if choice is None or not changes:
        return job
    wanted = changes.get("data.cache", choice.wanted)
    if (
        unless_open(wanted) is None and choice.is_measured
    ):  # the recipe had fixed it: what the loader would do if it were left open
        choice = replace(choice, wanted=wanted)
    tier = choice.tier_for(wanted, _epochs(calibration, job))
    return replace(job, settings=replace(job.settings, cache=tier))


def _epochs(calibration: Calibration, job: WhatIfJob) -> int:
    """Begun at least."""
    if job.settings.max_steps is None:
        return job.settings.epochs
    return min(job.settings.epochs, math.ceil(job.settings.max_steps / steps_per_epoch(calibration, job)))


def _error(calibration: Calibration, quantity: str, relative: float) -> float:
    """Of an interval: as stored predictions of this quantity turned out, and never below what the model missed."""
    relative *= calibration.interval_factors.get(quantity, 1.0)
    return min(_MOST_ERROR, max(_LEAST_ERROR, calibration.model_error, relative))


def _widened(calibration: Calibration, quantity: str, bare: Interval) -> Interval:
    if bare.value <= 0:
        return bare
    return Interval.around(bare.value, _error(calibration, quantity, (bare.high - bare.low) / 2 / bare.value))


def _extrapolation(calibration: Calibration, job: WhatIfJob) -> float:
    """How much surer the model is of what it has seen than of what it has not."""
    measured, settings, error = calibration.settings, job.settings, 0.0
    if settings.workers != measured.workers:
        error += 0.08
    if settings.batch_size != measured.batch_size:
        known = calibration.device_kind == "emulated" or len(calibration.device_points) > 1
        error += (0.03 if known else 0.06) * abs(math.log2(settings.batch_size / measured.batch_size))
    if settings.cache != measured.cache or settings.stage != measured.stage:
        choice = calibration.cache_choice
        known = settings.cache == measured.cache or (choice is not None and choice.is_measured)
        error += 0.06 if known else 0.2
    if job.outside_differs(calibration):
        error += 0.06
    if settings.checkpointing != measured.checkpointing:
        error += 0.08
    if settings.accumulate != measured.accumulate:
        error += 0.04 * abs(math.log2(settings.accumulate / measured.accumulate))
    if settings.precision != measured.precision:
        error += 0.3
    if job.ranks != calibration.world_size:
        error += 0.08 * abs(math.log2(job.ranks / calibration.world_size))
    return error


def _run_parts(calibration: Calibration, job: WhatIfJob, step: Interval, cold_step: float) -> RunParts:
    settings, steps, epochs = job.settings, steps_per_epoch(calibration, job), _epochs(calibration, job)
    total = min(epochs * steps, settings.max_steps or epochs * steps)
    saves = math.ceil(epochs / settings.checkpoint_every_epochs)
    saves += total // settings.checkpoint_every_steps if settings.checkpoint_every_steps else 0
    return RunParts(
        step=step + calibration.between_seconds,
        steps_per_epoch=total / epochs,
        epochs=epochs,
        startup=_startup(calibration, job),
        cold_extra=Interval.around(_cold_extra(calibration, job, cold_step - step.value), 0.2),
        epoch_gap=Interval.around(calibration.epoch_gap_seconds, 0.3),
        validation=Interval.around(_validation(calibration, job, epochs), 0.15),
        validations=math.ceil(epochs / settings.validate_every) if calibration.validation_seconds else 0,
        checkpoint=Interval.around(calibration.checkpoint_seconds, 0.25),
        checkpoints=saves,
    )


def _startup(calibration: Calibration, job: WhatIfJob) -> Interval:
    """One process that has imported already starts several ranks, which import together on the cores they share."""

    def to_meet(ranks: int, here: int) -> float:
        each = calibration.import_seconds * max(1.0, here / calibration.cores)
        return 0.0 if ranks < 2 else _RANK_START_SECONDS + each

    before = to_meet(calibration.world_size, calibration.ranks_here)
    after = to_meet(job.ranks, ranks_here(calibration, job))
    seconds = max(0.0, calibration.startup_seconds - before + after)
    return Interval.around(seconds, 0.12 if job.ranks == calibration.world_size else 0.3)


def _validation(calibration: Calibration, job: WhatIfJob, epochs: int) -> float:
    """Mean of all. Where loading sets the pace, it does here too, until a stage has the samples after the first."""
    seconds, before = calibration.validation_seconds, calibration.settings.stage
    if calibration.limit != "loading" and job.settings.batch_size != calibration.settings.batch_size:
        each = [
            job.device.step_seconds(size) / size for size in (job.settings.batch_size, calibration.settings.batch_size)
        ]
        seconds *= each[0] / each[1] if each[1] > 0 else 1.0
    if not calibration.remote or calibration.limit != "loading" or job.settings.stage == before or before != "off":
        return seconds
    times = max(1, math.ceil(epochs / job.settings.validate_every))
    costs = [sample_costs(calibration, each) for each in (measured_job(calibration), job)]
    remote, local = (each.latency_seconds + each.decode_seconds for each in costs)
    return seconds * (1 + (times - 1) * min(1.0, local / remote)) / times


def _cold_extra(calibration: Calibration, job: WhatIfJob, modelled: float) -> float:
    """As measured where the tiers stay as they are, else what the first epoch lacks."""
    measured, settings = calibration.settings, job.settings
    modelled = max(0.0, modelled) * steps_per_epoch(calibration, job)
    same = (settings.cache, settings.stage) == (measured.cache, measured.stage)
    if not same or calibration.sample_state == FILLING:
        return modelled
    base = measured_job(calibration)
    warm, first = (_corrected(calibration, each, each is not base).seconds for each in (base, cold(calibration, base)))
    before = max(0.0, first - warm) * steps_per_epoch(calibration, base)
    return calibration.cold_extra_seconds * (modelled / before if before > 0 else 1.0)


def _memory(calibration: Calibration, job: WhatIfJob) -> Interval | None:
    """Weights, gradients and the optimizer's state stay; activations are those of a part of a batch."""
    peak, measured = calibration.memory_bytes, calibration.settings
    if peak is None:
        return None
    parts, before = job.settings.batch_size / job.settings.accumulate, measured.batch_size / measured.accumulate
    use, error = _memory_use(calibration, peak, before)
    error += 0.05 * abs(math.log2(parts / before))
    if job.settings.checkpointing != measured.checkpointing:
        error += 0.2
    bytes_ = use.peak_bytes(parts, job.settings.checkpointing)
    return _widened(calibration, "memory", Interval.around(bytes_, error))


def _memory_use(calibration: Calibration, peak: float, batch: float) -> tuple[MemoryUse, float]:
    """From one measured peak: by a slope that a probe measured, else by what weights and optimizer are known to take.
    And how sure that is."""
    share = MemoryUse(0.0, 1.0).checkpointed_share if calibration.settings.checkpointing else 1.0
    if calibration.memory_per_sample_bytes is not None:
        each = min(calibration.memory_per_sample_bytes, peak / batch)
        return MemoryUse(max(0.0, peak - each * batch), each / share), 0.05
    known = calibration.parameter_bytes or calibration.gradient_bytes
    fixed = (2 + calibration.state_copies) * known if known else 0.0
    if calibration.device_kind == "cpu":  # the peak is that of the process
        fixed += _PROCESS_BYTES
    fixed = min(0.9 * peak, fixed)
    return MemoryUse(fixed, (peak - fixed) / batch / share), 0.05 if known else 0.1


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
