"""Find the settings that train the most samples a second: model first, then few measurements, interleaved."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flatout.commands.probe import probe_recipe
from flatout.config.loading import dump_config, load_config
from flatout.config.schema import Config
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.decisions.compute import fast_precisions
from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.model.memory import CONTEXT_BYTES
from flatout.diagnosis.tuning import (
    Trial,
    batch_sizes,
    best,
    grid,
    promising,
    rescues,
    scaled_lr,
    undecided,
    usable,
    worker_counts,
)
from flatout.diagnosis.what_if import predict
from flatout.engine.devices import choose_device
from flatout.engine.parallel.joining import require_one_process
from flatout.errors import ConfigError, RunFailed
from flatout.machine.budgets import usable_cores
from flatout.training.measuring import measure_apart

_FINALISTS, _ROUNDS, _MOST_ROUNDS = 4, 3, 8


@dataclass(frozen=True)
class Tuned:
    """The chosen setting, the one given, everything that was tried, and what could have been."""

    chosen: Trial
    given: Trial
    trials: tuple[Trial, ...]
    axes: Mapping[str, Sequence[Any]]
    changes: Mapping[str, Any]
    seconds: float
    usd_per_hour: float | None

    @property
    def grid_size(self) -> int:
        """How many combinations an exhaustive search would measure."""
        return len(grid(self.axes))

    @property
    def gain(self) -> float:
        return self.chosen.speed / self.given.speed if self.given.speed else float("inf")


def tune_recipe(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    seconds: float = 4.0,
    keep_batch: bool = False,
    compile_too: bool = False,
    out: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Probe, rank the grid by the model, measure a few, then the best of them again in turns; writes a recipe."""
    started = time.monotonic()
    config = load_config(source, overrides).config
    require_one_process(config, "tune")
    folder = Path("runs") / f"{config.name}-tune"
    calibration = probe_recipe(_recipe(config), None, min(seconds, 3.0), folder, say).calibration
    axes = _axes(config, calibration, keep_batch, compile_too)
    trials = _search(config, calibration, axes, seconds, say)
    given_setting = {key: _current(config, calibration, key) for key in axes}
    finalists = sorted((each for each in trials if usable(each)), key=lambda each: -each.speed)[:_FINALISTS]
    if not any(each.setting == given_setting for each in finalists):
        finalists.append(next((each for each in trials if each.setting == given_setting), Trial(given_setting)))
    finalists = _rounds(config, finalists, seconds, say)
    chosen = best(finalists)
    given = next(each for each in finalists if each.setting == given_setting)
    if chosen is None:
        raise RunFailed(f"tune: no setting of {len(trials)} could be measured: {trials[0].failed}")
    rest = [each for each in trials if not any(each.setting == final.setting for final in finalists)]
    changes = _changes(config, given, chosen)
    rate = hourly_rate_usd(config.cost, load_catalogue(config.cost.prices))
    if out is not None:
        _write_recipe(config, changes, out)
    taken = time.monotonic() - started
    return Tuned(chosen, given, (*finalists, *rest), axes, changes, taken, rate)


def _recipe(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True)


def _axes(config: Config, calibration: Calibration, keep_batch: bool, compile_too: bool) -> dict[str, list[Any]]:
    kind = calibration.device_kind
    batch, per_sample = config.batch_setting, config.batch_setting / calibration.settings.batch_size
    most = int(calibration.samples_per_epoch * per_sample)
    axes: dict[str, list[Any]] = {
        config.batch_key: [batch] if keep_batch else batch_sizes(batch, most),
        "data.workers": worker_counts(usable_cores()),
    }
    if kind != "cpu" and predict(calibration, {"data.workers": usable_cores()}).limit != "compute":
        axes["data.prefetch"] = [config.data.prefetch, 6 * usable_cores()]  # deeper, where loading comes in bursts
    if kind != "emulated":
        if "train.channels_last" in config.spec.keys:
            axes["train.channels_last"] = [True, False]
        axes["train.precision"] = _precisions(config, calibration.settings.precision)
        if compile_too:
            axes["train.compile"] = [False, True]
    if kind == "cuda" or config.train.checkpointing:
        axes["train.checkpointing"] = [False, True]
    if kind == "cuda" or config.train.accumulate > 1:
        axes["train.accumulate"] = sorted({1, config.train.accumulate, 2 * config.train.accumulate})
    return axes


def _precisions(config: Config, decided: str) -> list[str]:
    """A slow one is found out at once; what the device only emulates is left out."""
    return sorted({"fp32", decided} | fast_precisions(choose_device(config.device).facts))


def _current(config: Config, calibration: Calibration, key: str) -> Any:
    """The recipe's own value of a key; what `auto` stands for where it says so."""
    return {
        config.batch_key: config.batch_setting,
        "data.workers": calibration.settings.workers,
        "data.prefetch": config.data.prefetch,
        "train.channels_last": config.train.channels_last,
        "train.precision": calibration.settings.precision,
        "train.compile": config.train.compile,
        "train.checkpointing": config.train.checkpointing,
        "train.accumulate": config.train.accumulate,
    }[key]


def _search(
    config: Config,
    calibration: Calibration,
    axes: Mapping[str, Sequence[Any]],
    seconds: float,
    say: Callable[[str], None],
) -> list[Trial]:
    """A quarter of the grid at most: the model's favourites by batch and workers, then one other key at a time."""
    budget = max(2, len(grid(axes)) // 4)
    current = {key: _current(config, calibration, key) for key in axes}
    trials = [_measured(config, current, seconds, say)]
    modelled = (config.batch_key, "data.workers")
    others = [key for key in axes if key not in modelled]
    reserved = sum(len(axes[key]) - 1 for key in others)
    placed = [{**current, **each} for each in grid({key: axes[key] for key in modelled})]
    for setting in promising(calibration, [each for each in placed if each != current], max(1, budget - 1 - reserved)):
        trials.append(_measured(config, setting, seconds, say))  # noqa: PERF401

    def try_out(setting: Mapping[str, Any]) -> None:
        if len(trials) < budget and not any(each.setting == setting for each in trials):
            trials.append(_measured(config, setting, seconds, say))

    for setting in rescues(trials, axes):
        try_out(setting)
    for key in others:
        leader = best(trials)
        for value in axes[key] if leader is not None else ():
            if key != "data.prefetch" or (leader or trials[0]).setting["data.workers"]:  # nobody prepares ahead
                try_out({**(leader or trials[0]).setting, key: value})
    return trials


def _measured(config: Config, setting: Mapping[str, Any], seconds: float, say: Callable[[str], None]) -> Trial:
    try:
        changed = load_config(_recipe(config), setting).config
    except ConfigError as error:
        return Trial(setting, failed=str(error))
    measured = measure_apart(_recipe(changed), seconds)
    named = ", ".join(f"{key.partition('.')[2]}={value}" for key, value in setting.items())
    if measured.failed is not None:
        say(f"{named}: {measured.failed}")
        return Trial(setting, failed=measured.failed)
    say(f"{named}: {measured.samples_per_second:.0f} samples/s, data wait {100 * measured.wait_share:.0f} %")
    share = None
    if measured.memory_peak_bytes is not None and choose_device(config.device).kind == "cuda":
        share = measured.memory_peak_bytes / (torch.cuda.get_device_properties(0).total_memory - CONTEXT_BYTES)
    return Trial(setting, (measured.samples_per_second,), measured.wait_share, share)


def _rounds(config: Config, finalists: list[Trial], seconds: float, say: Callable[[str], None]) -> list[Trial]:
    """The best again, in turns, so that a noisy neighbour meets all; longer where they are hard to tell apart."""

    def play(trials: Sequence[Trial], seconds: float) -> None:
        for at in [finalists.index(trial) for trial in trials]:
            again = _measured(config, finalists[at].setting, seconds, say)
            speeds = (*finalists[at].samples_per_second, *again.samples_per_second)
            finalists[at] = replace(
                finalists[at], samples_per_second=speeds, wait_share=again.wait_share, failed=again.failed
            )

    for _ in range(_ROUNDS - 1):
        play(tuple(finalists), seconds)
    for _ in range(_MOST_ROUNDS - _ROUNDS):
        play(undecided(finalists), 2 * seconds)
    return finalists


def _changes(config: Config, given: Trial, chosen: Trial) -> dict[str, Any]:
    changes = {key: value for key, value in chosen.setting.items() if value != given.setting[key]}
    if (key := config.batch_key) in changes:
        rate = scaled_lr(config.train.lr, config.train.optimizer, config.batch_setting, changes[key])
        changes["train.lr"] = float(f"{rate:.3g}")
    return changes


def _write_recipe(config: Config, changes: Mapping[str, Any], path: Path) -> None:
    try:
        path.write_text(dump_config(load_config(_recipe(config), changes).config), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the recipe {path}: {error.strerror}; choose another file") from None
