"""Find the settings that train the most samples a second: model first, then few measurements, interleaved."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from flatout.commands.probe import probe_recipe
from flatout.config.loading import dump_config, load_config
from flatout.config.schema import Config
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.decisions.compute import fast_precisions
from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.memory import CONTEXT_BYTES
from flatout.diagnosis.tuning import (
    MOST_WAIT_SHARE,
    Trial,
    WholeRun,
    batch_sizes,
    best,
    claimed_gain,
    grid,
    plain_settings,
    promising,
    rescues,
    run_samples_per_second,
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
from flatout.training.measuring import Measured, import_seconds, measure_apart
from flatout.units import format_seconds

_FINALISTS, _ROUNDS, _MOST_ROUNDS = 4, 3, 8
_START_SECONDS = 2.0  # of a measurement: a process, listing, a model, a few steps


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
    claim: Interval
    """How many times faster the whole run of the recipe gets."""
    run_seconds: float
    """Of the run as it was given."""

    @property
    def grid_size(self) -> int:
        """How many combinations an exhaustive search would measure."""
        return len(grid(self.axes))

    @property
    def gain(self) -> float:
        return self.claim.value


def tune_recipe(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    seconds: float = 4.0,
    keep_batch: bool = False,
    compile_too: bool = False,
    out: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Probe, rank the grid by the model, measure a few, then the best of them and the given setting again in turns;
    writes a recipe. The claim is of the recipe's whole run, and rests on the turns alone."""
    started = time.monotonic()
    config = load_config(source, overrides).config
    require_one_process(config, "tune")
    folder = Path("runs") / f"{config.name}-tune"
    say(f"a probe of five phases first, about {5 * (min(seconds, 3.0) + _START_SECONDS):.0f} s")
    calibration = probe_recipe(_recipe(config), None, min(seconds, 3.0), folder, say).calibration
    axes = _axes(config, calibration, keep_batch, compile_too)
    bench = TuningBench(config, calibration, seconds, say)
    trials = _search(bench, axes)
    given_setting = {key: _current(config, calibration, key) for key in axes}
    finalists = sorted((each for each in trials if usable(each)), key=lambda each: -each.speed)[:_FINALISTS]
    if not any(each.setting == given_setting for each in finalists):
        finalists.append(next((each for each in trials if each.setting == given_setting), Trial(given_setting)))
    finalists = _rounds(bench, finalists, given_setting)
    chosen = best(finalists)
    given = next(each for each in finalists if each.setting == given_setting)
    if chosen is None:
        raise RunFailed(f"tune: no setting of {len(trials)} could be measured: {trials[0].failed}")
    rest = [each for each in trials if not any(each.setting == final.setting for final in finalists)]
    changes = _changes(config, given, chosen)
    rate = hourly_rate_usd(config.cost, load_catalogue(config.cost.prices))
    if out is not None:
        _write_recipe(config, changes, out)
    samples = bench.run_samples
    return Tuned(
        chosen,
        given,
        (*finalists, *rest),
        axes,
        changes,
        time.monotonic() - started,
        rate,
        claimed_gain(given, chosen, samples),
        given.other_seconds + samples / given.speed if given.speed else float("inf"),
    )


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
    if "data.cache" in config.spec.keys and config.data.cache != "off" and config.data.shared == "off":
        axes["data.cache"] = [config.data.cache, "off"]
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
    settings = calibration.settings
    decided = {"data.workers": settings.workers, "train.precision": settings.precision}
    return decided[key] if key in decided else attrgetter(key)(config)


class TuningBench:
    """Measures settings of one recipe, and says how far it is."""

    def __init__(self, config: Config, calibration: Calibration, seconds: float, say: Callable[[str], None]) -> None:
        self.config = config
        self.calibration = calibration
        self.seconds = seconds
        self._say = say
        self._planned_seconds = 0.0
        self._imports = import_seconds()

    @property
    def run(self) -> WholeRun:
        train = self.config.train
        return WholeRun(self.calibration.samples_per_epoch, train.epochs, train.max_steps)

    @property
    def run_samples(self) -> float:
        """Of the run as given: with another batch, as many samples are compared."""
        steps, train = math.ceil(self.run.samples_per_epoch / self.calibration.settings.batch_size), self.config.train
        total = min(train.epochs * steps, train.max_steps or train.epochs * steps)
        return self.run.samples_per_epoch * total / steps

    def plan(self, what: str, measurements: int, seconds: float) -> None:
        """Say what is to come and how long that takes."""
        self._planned_seconds = measurements * (seconds + _START_SECONDS)
        self._say(f"{what}: {measurements} measurements, about {format_seconds(self._planned_seconds)}")

    def measure(self, setting: Mapping[str, Any], seconds: float | None = None) -> Trial:
        seconds, began = seconds or self.seconds, time.monotonic()
        try:
            changed = load_config(_recipe(self.config), setting).config
        except ConfigError as error:
            return Trial(setting, failed=str(error))
        measured = measure_apart(_recipe(changed), seconds)
        self._planned_seconds = max(0.0, self._planned_seconds - (time.monotonic() - began))
        named = ", ".join(f"{key.partition('.')[2]}={value}" for key, value in setting.items())
        left = f"(about {format_seconds(self._planned_seconds)} left)" if self._planned_seconds >= 1 else ""
        if measured.failed is not None:
            self._say(f"{named}: {measured.failed} {left}".rstrip())
            return Trial(setting, failed=measured.failed)
        trial = self._trial(setting, measured)
        self._say(f"{named}: {trial.speed:.0f} samples/s, data wait {100 * measured.wait_share:.0f} % {left}".rstrip())
        return trial

    def _trial(self, setting: Mapping[str, Any], measured: Measured) -> Trial:
        memory = None
        if measured.memory_peak_bytes is not None and choose_device(self.config.device).kind == "cuda":
            memory = measured.memory_peak_bytes / (torch.cuda.get_device_properties(0).total_memory - CONTEXT_BYTES)
        rate = run_samples_per_second(self.run, measured.batch_size, measured.cold_step, measured.warm_step)
        return Trial(setting, (rate,), measured.wait_share, memory, other_seconds=self._other_seconds(measured))

    def _other_seconds(self, measured: Measured) -> float:
        """Start and validations of the run. A validation loads as training does, and computes the forward pass."""
        share = 1.0 if measured.wait_share > MOST_WAIT_SHARE else self.calibration.device.forward_share
        each = measured.val_samples / max(1.0, measured.batch_size) * measured.warm_step * share
        times = math.ceil(self.config.train.epochs / self.config.validate_.every_epochs)
        return self._imports + measured.setup_seconds + each * times


def _search(bench: TuningBench, axes: Mapping[str, Sequence[Any]]) -> list[Trial]:
    """A quarter of the grid at most: what anybody would try first, the model's favourites by batch and workers, then
    one other key at a time."""
    config, calibration = bench.config, bench.calibration
    budget = max(3, len(grid(axes)) // 4)
    bench.plan("a first look", budget, bench.seconds)
    current = {key: _current(config, calibration, key) for key in axes}
    trials = [bench.measure(current)]

    def try_out(setting: Mapping[str, Any]) -> None:
        if len(trials) < budget and not any(each.setting == setting for each in trials):
            trials.append(bench.measure(setting))

    for setting in plain_settings(current, axes, usable_cores()):
        try_out(setting)
    modelled = (config.batch_key, "data.workers")
    others = [key for key in axes if key not in (*modelled, "data.cache")]
    reserved = sum(len(axes[key]) - 1 for key in others)
    placed = [{**current, **each} for each in grid({key: axes[key] for key in modelled})]
    left = max(1, budget - len(trials) - reserved)
    for setting in promising(calibration, [each for each in placed if each != current], left):
        try_out(setting)
    for setting in rescues(trials, axes):
        try_out(setting)
    for key in [*others, *(["data.cache"] if "data.cache" in axes else [])]:
        leader = best(trials)
        for value in axes[key] if leader is not None else ():
            if key != "data.prefetch" or (leader or trials[0]).setting["data.workers"]:  # nobody prepares ahead
                try_out({**(leader or trials[0]).setting, key: value})
    return trials


def _rounds(bench: TuningBench, finalists: list[Trial], given: Mapping[str, Any]) -> list[Trial]:
    """The best and the given setting anew, in turns, so that a noisy neighbour meets all; longer where they are hard to
    tell apart. What was measured before, at another time, does not count."""
    finalists = [replace(each, samples_per_second=()) for each in finalists]

    def play(trials: Sequence[Trial], seconds: float) -> None:
        for at in [finalists.index(trial) for trial in trials]:
            again = bench.measure(finalists[at].setting, seconds)
            speeds = (*finalists[at].samples_per_second, *again.samples_per_second)
            finalists[at] = replace(again, samples_per_second=speeds)

    bench.plan("the best in turns", _ROUNDS * len(finalists), bench.seconds)
    for _ in range(_ROUNDS):
        play(tuple(finalists), bench.seconds)
    for _ in range(_MOST_ROUNDS - _ROUNDS):
        close = undecided(finalists)
        if close:
            base = [each for each in finalists if each.setting == given and each not in close]
            bench.plan("too close to call, once more", len(close) + len(base), 2 * bench.seconds)
            play((*close, *base), 2 * bench.seconds)
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


def told_lines(tuned: Tuned, recipe: Path) -> Iterator[str]:
    """What is said of the result on a terminal."""
    chosen, given, claim = tuned.chosen, tuned.given, tuned.claim
    yield (
        f"the whole run takes {format_seconds(tuned.run_seconds)} as given and "
        f"{format_seconds(tuned.run_seconds / claim.value)} tuned: {claim.value:.2f} times as fast "
        f"({claim.low:.2f} to {claim.high:.2f})"
    )
    yield (
        f"its steps: {chosen.speed:.0f} samples/s against {given.speed:.0f}, filling a cache included; "
        f"data wait {100 * chosen.wait_share:.0f} %"
    )
    if tuned.usd_per_hour:
        yield f"{chosen.speed * 3600 / tuned.usd_per_hour:,.0f} samples a dollar"
    changed = ", ".join(f"{key}={value}" for key, value in tuned.changes.items())
    yield f"{recipe}: {changed or 'nothing changed, the recipe was best as it is'}"
    yield f"{len(tuned.trials)} of {tuned.grid_size} combinations measured in {tuned.seconds:.0f} s"
