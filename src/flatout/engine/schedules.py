"""The learning rate as a pure function of the step: nothing to store, nothing to restore."""

import math
from collections.abc import Callable
from typing import Protocol, cast

from flatout import plugins
from flatout.config.schema import TrainConfig
from flatout.config.sections.train import SCHEDULES
from flatout.errors import ConfigError

_ONE_CYCLE_START = 1 / 25  # of the peak
_ONE_CYCLE_END = 1 / 250_000
_ONE_CYCLE_RISE = 0.3  # of the run, where no warm-up is asked for


def learning_rate(train: TrainConfig, step: int, total_steps: int, peak: float, warmup_steps: int = 0) -> float:
    """The rate for step 0, 1, ... `total_steps` - 1; what ends at zero does so at `total_steps`, so every step counts.

    Warm-up rises in a line through `warmup_steps` nonzero rates and meets the peak at step `warmup_steps`.
    `milestones` are shares of the whole run, warm-up included, after each of which `step` multiplies by `gamma`.
    """
    schedule = train.schedule
    if schedule not in SCHEDULES:
        return _own_rate(train, step, total_steps, peak, warmup_steps)
    if schedule == "one-cycle":
        return peak * _one_cycle(step, total_steps, warmup_steps or _rise_steps(total_steps))
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "step":
        return peak * train.gamma ** sum(step >= share * total_steps for share in train.milestones)
    if schedule == "inverse-sqrt":
        return peak * math.sqrt((warmup_steps + 1) / (step + 1))
    return peak * _DECAYS[schedule](_progress(step, warmup_steps, total_steps))


def describe(train: TrainConfig, total_steps: int, peak: float, warmup_steps: int = 0) -> str:
    """One sentence fragment for reports: `cosine from 0.5 to 0 over 790 steps after 79 warm-up steps`."""
    schedule = train.schedule
    if schedule not in SCHEDULES:  # asked for all along: a mistake is found before the first step
        asked = sorted({round(part * (total_steps - 1) / 999) for part in range(1000)})
        rates = [_own_rate(train, each, total_steps, peak, warmup_steps) for each in asked]
        return f"{schedule} from {rates[0]:.4g} to {rates[-1]:.4g} over {total_steps} steps, at most {max(rates):.4g}"
    if schedule == "one-cycle":
        rise = min(warmup_steps or _rise_steps(total_steps), total_steps)
        low, end = peak * _ONE_CYCLE_START, peak * _ONE_CYCLE_END
        return f"one-cycle from {low:g} to {peak:g} over {rise} steps, then to {end:g} over {total_steps - rise} steps"
    after = f" after {warmup_steps} warm-up steps" if warmup_steps else ""
    steps = max(0, total_steps - warmup_steps)
    if schedule == "step":
        at = " and ".join(str(math.ceil(share * total_steps)) for share in train.milestones)
        return f"step from {peak:g}, times {train.gamma:g} at steps {at} of {total_steps}{after}"
    if schedule == "constant":
        return f"constant at {peak:g} for {steps} steps{after}"
    end = learning_rate(train, total_steps, total_steps, peak, warmup_steps)
    return f"{schedule} from {peak:g} to {end:.4g} over {steps} steps{after}"


class Schedule(Protocol):
    """One of the user's own: `train.schedule: ./file.py:Name`, or an entry point of flatout.schedules. A function gets
    train.schedule_options with every call; a class is made with them."""

    def __call__(self, step: int, total_steps: int, peak: float, warmup_steps: int) -> float:
        """The rate for step 0, 1, ... `total_steps` - 1: of nothing else, so that a resumed run has the same rates."""
        ...


_own: dict[tuple[str, str], Schedule] = {}


def _own_rate(train: TrainConfig, step: int, total_steps: int, peak: float, warmup: int) -> float:
    name, options = train.schedule, train.schedule_options
    key, what = (name, repr(options)), f"train.schedule is {name!r}"
    with plugins.blamed(what):
        if key not in _own:
            _own[key] = cast(Schedule, plugins.made(plugins.load("schedules", name, "train.schedule"), options))
        rate = _own[key](step, total_steps, peak, warmup)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ConfigError(f"{what}, which gave {rate!r} for step {step} of {total_steps}; a rate is a number from 0 on")
    return float(rate)


def warmup_steps(train: TrainConfig, batches_per_epoch: int) -> int:
    """Steps of the warm-up: train.warmup_steps, or train.warmup_epochs counted in steps."""
    return round(train.warmup_epochs * batches_per_epoch) if train.warmup_steps is None else train.warmup_steps


def _progress(step: int, start: int, end: int) -> float:
    """How far `step` is between `start` and `end`, 0 to 1; a stretch of no steps counts as one."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))


def _falling(progress: float) -> float:
    """From 1 to 0 along half a cosine wave."""
    return 0.5 * (1 + math.cos(math.pi * progress))


_DECAYS: dict[str, Callable[[float], float]] = {
    "cosine": _falling,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}


def _rise_steps(total_steps: int) -> int:
    return int(_ONE_CYCLE_RISE * total_steps)


def _one_cycle(step: int, total_steps: int, rise_steps: int) -> float:
    if step < rise_steps:
        return 1 - (1 - _ONE_CYCLE_START) * _falling(_progress(step, 0, rise_steps))
    return _ONE_CYCLE_END + (1 - _ONE_CYCLE_END) * _falling(_progress(step, rise_steps, total_steps))


def scaled_rate(rate: float, rule: str, ranks: int) -> float:
    """A rate that suits one rank's batch, for that of all of them (parallel.scale_lr)."""
    return rate * {"none": 1.0, "linear": float(ranks), "sqrt": math.sqrt(ranks)}[rule]
