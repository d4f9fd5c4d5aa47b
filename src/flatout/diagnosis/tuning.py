"""Which settings are worth measuring, and which of the measured ones to take: pure decisions of `flatout tune`."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.decisions.loading import with_open_worker_options
from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.memory import FRAGMENTED_SHARE
from flatout.diagnosis.what_if import predict

MOST_WAIT_SHARE = 0.10
MOST_MEMORY_SHARE = 1 - FRAGMENTED_SHARE  # of what the CUDA context leaves
BATCH_KEYS = ("data.batch_size", "data.global_batch", "data.batch_tokens")  # a recipe uses one of them
_AS_GOOD = 0.01  # a difference too small to pay for with memory or workers

_LEAST_DOUBT, _MOST_DOUBT = 0.05, 0.9  # of a claim

Setting = Mapping[str, Any]


@dataclass(frozen=True)
class WholeRun:
    """The run that was asked for."""

    samples_per_epoch: int
    epochs: int
    max_steps: int | None = None


@dataclass(frozen=True)
class Trial:
    """One setting and what its rounds measured; `failed` says why it cannot be used."""

    setting: Setting
    samples_per_second: tuple[float, ...] = ()
    """Over the steps of the whole run that was asked for, a first epoch that fills a cache included."""
    wait_share: float = 0.0
    memory_share: float | None = None
    failed: str | None = None
    other_seconds: float = 0.0
    """Of that run: all besides its steps."""

    @property
    def speed(self) -> float:
        return statistics.median(self.samples_per_second) if self.samples_per_second else 0.0

    @property
    def spread(self) -> float:
        """Half the range of its rounds, as a share: how sure the figure is."""
        if len(self.samples_per_second) < 2:
            return 0.1
        return (max(self.samples_per_second) - min(self.samples_per_second)) / 2 / max(self.speed, 1e-9)


def run_samples_per_second(job: WholeRun, batch: float, cold_step: float, warm_step: float) -> float:
    """Of the steps of a run: the first epoch's are cold, the others are warm."""
    steps = math.ceil(job.samples_per_epoch / batch)
    total = min(job.epochs * steps, job.max_steps or job.epochs * steps)
    first = min(steps, total)
    seconds = first * cold_step + (total - first) * warm_step
    samples = total * batch if job.max_steps else job.epochs * job.samples_per_epoch * total / (job.epochs * steps)
    return samples / seconds if seconds > 0 else 0.0


def claimed_gain(given: Trial, chosen: Trial, samples: float) -> Interval:
    """How many times faster the whole run gets: rounds are compared with the round beside them, since a busy moment
    meets both. As sure as the rounds agree, and never surer than two equal runs do."""
    if given.setting == chosen.setting:
        return Interval.around(1.0, _LEAST_DOUBT)
    pairs = zip(given.samples_per_second, chosen.samples_per_second, strict=False)
    ratios = [
        (given.other_seconds + samples / before) / (chosen.other_seconds + samples / after)
        for before, after in pairs
        if before > 0 and after > 0
    ]
    if not ratios:
        return Interval(math.inf, 1.0, math.inf)
    value, doubt = statistics.median(ratios), 0.2
    if len(ratios) > 1:
        doubt = max((max(ratios) - min(ratios)) / 2, 2 * statistics.stdev(ratios) / len(ratios) ** 0.5) / value
    return Interval.around(value, min(_MOST_DOUBT, max(_LEAST_DOUBT, doubt)))


def plain_settings(current: Setting, axes: Mapping[str, Sequence[Any]], cores: int) -> list[Setting]:
    """What anybody would try first: as many workers as cores, and the same without a cache."""
    workers = {**current, "data.workers": cores}
    bare = [{**each, "data.cache": "off"} for each in (workers, current)] if "data.cache" in axes else []
    found: list[Setting] = []
    for each in (workers, *bare):
        if each != current and each not in found:
            found.append(each)
    return found


def grid(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination that a recipe may have: what an exhaustive search would measure."""
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [each for each in every if each.items() <= with_open_worker_options(each).items()]


def batch_sizes(batch: int, samples: int) -> list[int]:
    """The given batch, half of it, and doubles that leave at least eight steps an epoch."""
    most = min(max(batch, samples // 8), samples)
    sizes = [max(1, batch // 2), *(batch * 2**power for power in range(4))]
    return sorted({size for size in sizes if size <= most} | {batch})


def worker_counts(cores: int) -> list[int]:
    """None, one, half of the cores, all but one, all."""
    return sorted({0, 1, max(1, cores // 2), max(1, cores - 1), cores})


def promising(calibration: Calibration, settings: Sequence[Setting], count: int) -> list[Setting]:
    """The settings that the model puts first; of those it cannot tell apart, the ones nearest to the given batch."""
    batch_key = next((key for key in BATCH_KEYS if settings and key in settings[0]), BATCH_KEYS[0])
    given = calibration.batch_tokens or calibration.settings.batch_size
    known = (batch_key, "data.workers")
    expected = [
        predict(calibration, {key: setting[key] for key in known if key in setting}).samples_per_second.value
        for setting in settings
    ]
    fastest = max(expected, default=1.0)

    def order(at: int) -> tuple[int, float]:
        return -round(expected[at] / fastest / _AS_GOOD), abs(math.log2(settings[at].get(batch_key, given) / given))

    return [settings[at] for at in sorted(range(len(settings)), key=order)[:count]]


def rescues(trials: Sequence[Trial], axes: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Of the settings that ran out of memory, the first again: with activations computed twice, and in more parts."""
    failed = next((trial.setting for trial in trials if trial.failed and "out of memory" in trial.failed), None)
    if failed is None:
        return []
    more = [("train.checkpointing", True), ("train.accumulate", 2 * int(failed.get("train.accumulate", 1)))]
    return [{**failed, key: value} for key, value in more if value in axes.get(key, ())]


def usable(trial: Trial) -> bool:
    """It ran, and leaves the allocator some room."""
    return trial.failed is None and (trial.memory_share is None or trial.memory_share <= MOST_MEMORY_SHARE)


def best(trials: Sequence[Trial]) -> Trial | None:
    """The fastest that fits. Of those as good as it: without waiting for data first, then fewer workers and memory."""
    fitting = [trial for trial in trials if usable(trial) and trial.speed > 0]
    if not fitting:
        return None
    fastest = max(trial.speed for trial in fitting)
    close = [trial for trial in fitting if trial.speed >= (1 - _AS_GOOD) * fastest]

    def thrift(trial: Trial) -> tuple[bool, float, float, float]:
        workers = trial.setting.get("data.workers")
        return (
            trial.wait_share > MOST_WAIT_SHARE,
            float(workers) if isinstance(workers, int) else 0.0,
            float(next((trial.setting[key] for key in BATCH_KEYS if key in trial.setting), 0)),
            -trial.speed,
        )

    return min(close, key=thrift)


def undecided(trials: Sequence[Trial]) -> list[Trial]:
    """The leader and those that may yet be as fast, by the rounds they played side by side; empty when it is clear."""
    fitting = [trial for trial in trials if usable(trial) and trial.speed > 0]
    leader = max(fitting, key=lambda trial: trial.speed, default=None)
    if leader is None:
        return []
    close = [trial for trial in fitting if trial is not leader and _may_win(trial, leader)]
    return [leader, *close] if close else []


def _may_win(trial: Trial, leader: Trial) -> bool:
    ratios = [mine / its for mine, its in zip(trial.samples_per_second, leader.samples_per_second, strict=False)]
    if len(ratios) < 2:
        return True
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return error > _AS_GOOD and statistics.median(ratios) + 2 * error > 1.0


def scaled_lr(lr: float, optimizer: str, before: int, after: int) -> float:
    """The learning rate that goes with another batch: in proportion for sgd, with the root of it for the others."""
    factor = after / before
    return lr * (factor if optimizer == "sgd" else math.sqrt(factor))
