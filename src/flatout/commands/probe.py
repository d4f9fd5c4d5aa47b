"""Calibrate the performance model for a recipe in a few minutes at most; nothing is trained for good."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.commands.predict import settings_of
from flatout.config.loading import config_digest, dump_config, load_config
from flatout.config.schema import Config
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.decisions.loading import with_open_worker_options
from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.model.device import fit_device_time
from flatout.diagnosis.what_if import predict, with_residual
from flatout.engine.cuda_defaults import choose_precision, with_precision
from flatout.engine.devices import choose_device
from flatout.engine.parallel.joining import require_one_process
from flatout.errors import RunFailed
from flatout.machine.budgets import usable_cores
from flatout.reports.probe_text import probe_lines
from flatout.runs.directory import RunDirectory, write_json, write_text
from flatout.training.environment import describe_environment
from flatout.training.measuring import Measured, import_seconds, measure_apart
from flatout.training.setup import compute_threads, folder_name


@dataclass(frozen=True)
class Probe:
    """`residual` is what the calibrated model misses of the real steps it was checked against, as a share."""

    calibration: Calibration
    residual: float
    seconds: float
    directory: Path

    def lines(self) -> list[str]:
        """What was measured, in words."""
        return probe_lines(self.calibration, self.residual)


def probe_recipe(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    seconds: float = 5.0,
    out: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Probe:
    """Synthetic batches at two sizes, loading by one and by all cores, then real steps; writes probe.json."""
    started = time.monotonic()
    config = load_config(source, overrides).config
    require_one_process(config, "probe")
    device = choose_device(config.device)
    config = with_precision(config, choose_precision(config, device))
    folder = out or Path("runs") / f"{folder_name(config.name)}-probe"
    phases = _measure_phases(config, seconds, say)
    bare, real = _calibrate(config, phases), phases["real"]
    residual = predict(bare, {}).step.value / real.step - 1
    calibration = with_residual(bare, real.step)
    probe = Probe(calibration, residual, time.monotonic() - started, folder)
    _write(probe, config)
    return probe


def _measure_phases(config: Config, seconds: float, say: Callable[[str], None]) -> dict[str, Measured]:
    recipe = config.model_dump(mode="json", by_alias=True)
    key, whole = config.batch_key, config.batch_setting
    half = max(1, whole // 2)
    plain = {"data.cache": "off"}
    phases: dict[str, tuple[str, dict[str, Any], bool]] = {
        "device": (f"device, batch {whole}", {"train.accumulate": 1}, True),
        "half": (f"device, batch {half}", {key: half, "train.accumulate": 1}, True),
        "alone": ("loading, in the training thread", {**plain, "data.workers": 0, **_IDLE}, False),
        "crowded": (f"loading, {usable_cores()} workers", {**plain, "data.workers": usable_cores(), **_IDLE}, False),
        "real": ("real steps", {}, False),
    }
    if not config.spec.has_images:  # text takes so little that the training thread's own share tells enough
        phases["alone"] = ("loading, in the training thread", {"data.workers": 0}, False)
        del phases["crowded"]
    done = {}
    for name, (title, changes, synthetic) in phases.items():
        say(title)
        changed = load_config(recipe, with_open_worker_options(changes)).config.model_dump(mode="json", by_alias=True)
        done[name] = measure_apart(changed, seconds, synthetic)
        if done[name].failed is not None:
            raise RunFailed(f"probe: {title}: {done[name].failed}; nothing was written")
    return done


_IDLE = {
    "device": "emulated",
    "emulated.base_seconds": 0.0,
    "emulated.seconds_per_sample": 0.0,
    "model.width": 0.125,
    "model.name": "resnet18",
    "train.precision": "fp32",
}
"""A device that takes no time: what is left is loading."""


def _calibrate(config: Config, phases: Mapping[str, Measured]) -> Calibration:
    device = choose_device(config.device)
    full, half, alone = (phases[name] for name in ("device", "half", "alone"))
    points = tuple((each.batch_size, _computing(each)) for each in (full, half))
    forward = full.parts.get("forward", 0.0)
    share = forward / max(forward + full.parts.get("backward", 0.0), 1e-9)
    per_sample = {name: value / max(1, alone.loaded_samples) for name, value in vars(alone.stages).items()}
    memory = [(each.batch_size, each.memory_peak_bytes) for each in (full, half) if each.memory_peak_bytes is not None]
    slope = (memory[0][1] - memory[1][1]) / (memory[0][0] - memory[1][0]) if len(memory) == 2 else None
    fitted = fit_device_time(points, share)
    decided = phases["real"].decided
    assert decided is not None, "a phase with a loader of its own says what that decided"
    staged = decided.remote.value and decided.worker_kind.value != "process"  # in training: nothing is kept of a probe
    return Calibration(
        settings=settings_of(config, decided.workers.value, round(full.batch_size), staged),
        device=fitted,
        device_kind=device.kind,
        cores=usable_cores(),
        threads=compute_threads(config, device.kind),
        step_extra_seconds=max(0.0, full.step - _computing(full)),
        between_seconds=0.0,
        fetch_seconds=per_sample["fetch"],
        decode_seconds=per_sample["decode"],
        augment_seconds=per_sample["augment"] + per_sample["collate"],
        bytes_per_sample=per_sample["bytes_read"],
        remote=decided.remote.value,
        fetchers=decided.fetchers.value,
        samples_per_epoch=full.samples_per_epoch,
        startup_seconds=import_seconds() + phases["real"].setup_seconds,
        validation_seconds=0.0,
        checkpoint_seconds=0.0,
        step_error=0.05,
        contention=_contention(alone, phases.get("crowded")),
        usd_per_hour=hourly_rate_usd(config.cost, load_catalogue(config.cost.prices)),
        memory_bytes=full.memory_peak_bytes,
        memory_per_sample_bytes=slope,
        measured_workers=1,
        source="probe",
        device_points=points,
        batch_tokens=config.data.batch_tokens if config.spec.batch_unit == "tokens" else None,
    )


def _computing(measured: Measured) -> float:
    """Forward and backward of one step."""
    steps = max(1, round(measured.loaded_samples / max(1, measured.batch_size)))
    return (measured.parts.get("forward", 0.0) + measured.parts.get("backward", 0.0)) / steps


def _contention(alone: Measured, crowded: Measured | None) -> float:
    """How much slower each core works when all do."""
    if crowded is None:
        return 0.0
    perfect = alone.step / max(1, usable_cores())
    return min(1.0, max(0.0, crowded.step / perfect - 1)) if perfect > 0 else 0.0


def _write(probe: Probe, config: Config) -> None:
    directory = RunDirectory(probe.directory)
    directory.root.mkdir(parents=True, exist_ok=True)
    write_text(directory.config, dump_config(config))
    write_json(directory.environment, describe_environment(choose_device(config.device), config))
    summary = {"run": probe.directory.name, "status": "completed", "cause": None, "probe": True}
    write_json(directory.summary, {**summary, "config_digest": config_digest(config)})
    write_json(
        probe.directory / "probe.json",
        {"calibration": probe.calibration.to_dict(), "residual": probe.residual, "seconds": probe.seconds},
    )
