"""A change as a user writes it, `--if data.workers=4,ranks=2`, as the job that the model then looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.decisions.choice import unless_open
from flatout.diagnosis.calibration import Calibration, Settings
from flatout.diagnosis.model.device import DeviceTime
from flatout.errors import ConfigError
from flatout.units import parse_bits_per_second, parse_seconds

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
RANK_KEYS = ("ranks", "parallel.devices")
# not in a recipe: what lies outside of the job
WORLD = (
    "storage.latency",
    "storage.bandwidth",
    "emulated.base_seconds",
    "emulated.seconds_per_sample",
    "link",
    *RANK_KEYS,
    "cost.instance",
)


@dataclass(frozen=True)
class WhatIfJob:
    """What is trained and what surrounds it; None is as it was measured."""

    settings: Settings
    device: DeviceTime
    ranks: int
    latency_seconds: float | None = None
    storage_bytes_per_second: float | None = None
    link_bits_per_second: float | None = None

    def outside_differs(self, calibration: Calibration) -> bool:
        """Whether store or link are others than those that were measured."""
        given = (self.latency_seconds, self.storage_bytes_per_second, self.link_bits_per_second)
        return any(each is not None for each in given) or self.device != calibration.device


def measured_job(calibration: Calibration) -> WhatIfJob:
    return WhatIfJob(calibration.settings, calibration.device, calibration.world_size)


def changed_job(calibration: Calibration, changes: Mapping[str, Any]) -> WhatIfJob:
    """A key the model knows nothing of is refused: no answer is better than a guess."""
    job = measured_job(calibration)
    for key, value in changes.items():
        job = _changed(job, calibration, key, value)
    if calibration.batch_is_global and job.ranks != calibration.world_size and GLOBAL_BATCH not in changes:
        batch = max(1, round(job.settings.batch_size * calibration.world_size / job.ranks))
        job = replace(job, settings=replace(job.settings, batch_size=batch))
    return job


def _changed(job: WhatIfJob, calibration: Calibration, key: str, value: Any) -> WhatIfJob:
    settings, tokens = job.settings, calibration.batch_tokens
    if key == (OTHER_BATCH if tokens is None else "data.batch_size"):
        other = "data.batch_size" if tokens is None else OTHER_BATCH
        raise ConfigError(f"no prediction for {key}: the batches of this run are cut by {other}; change that")
    if key == OTHER_BATCH and tokens is not None:
        batch = max(1, round(calibration.settings.batch_size * value / tokens))
        return replace(job, settings=replace(settings, batch_size=batch))
    if key == GLOBAL_BATCH:
        return replace(job, settings=replace(settings, batch_size=max(1, round(value / job.ranks))))
    if key in SETTINGS:
        chosen: Any = unless_open(value)
        return replace(job, settings=replace(settings, **{SETTINGS[key]: chosen}))
    if key in RANK_KEYS:
        return replace(job, ranks=_ranks(key, value, calibration))
    return _outside(job, key, value)


def _ranks(key: str, value: Any, calibration: Calibration) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 4096:
        raise ConfigError(f"{key} is {value!r}; give a number of ranks from 1 to 4096")
    return value * (calibration.machines if key == "parallel.devices" else 1)


def _outside(job: WhatIfJob, key: str, value: Any) -> WhatIfJob:
    if key == "storage.latency":
        return replace(job, latency_seconds=parse_seconds(value))
    if key == "storage.bandwidth":
        return replace(job, storage_bytes_per_second=parse_bits_per_second(value) / 8)
    if key == "link":
        return replace(job, link_bits_per_second=parse_bits_per_second(value))
    if key in ("emulated.base_seconds", "emulated.seconds_per_sample"):
        return replace(job, device=replace(job.device, **{key.partition(".")[2]: float(value)}))
    if key.startswith("cost.") or key == "parallel.mode":  # priced where the whole recipe is known
        return job
    known = ", ".join(sorted({*SETTINGS, *WORLD, OTHER_BATCH, GLOBAL_BATCH}))
    raise ConfigError(f"no prediction for {key}: the model knows nothing of it; it knows {known}")
