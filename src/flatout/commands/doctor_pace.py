"""The doctor's arithmetic: images a second that the device takes, against what workers and cores can prepare."""

import math
from dataclasses import dataclass

from flatout.commands.doctor_data import CheckResult
from flatout.commands.planned_data import measure_costs
from flatout.config.schema import Config
from flatout.decisions.batches import choose_sample_batch
from flatout.decisions.loading import choose_workers
from flatout.engine.devices import choose_device
from flatout.machine.budgets import usable_cores
from flatout.training.measuring import measure
from flatout.units import format_seconds

_DEVICE_SECONDS = 1.0
_ENOUGH = 0.95  # of what the device takes: less is a wait that steps will show


@dataclass(frozen=True)
class Pace:
    """One rank's, but for `cores`, which `ranks` share."""

    needed_per_second: float
    """Images that the device would take if it never waited."""
    sample_seconds: float
    """Reading, decoding and augmenting an image, on one core."""
    workers: int
    cores: int
    ranks: int = 1

    @property
    def delivered_per_second(self) -> float:
        """By the workers, of which no more are at work at once than there are cores; the training thread itself
        prepares batches where there are none, and computes nothing meanwhile."""
        if self.workers == 0:
            return 1 / (self.sample_seconds + 1 / self.needed_per_second)
        return min(self.workers, self.cores / self.ranks) / self.sample_seconds

    @property
    def workers_needed(self) -> int:
        return max(1, math.ceil(self.needed_per_second * self.sample_seconds))


def check_pace(config: Config) -> CheckResult:
    """Measures both for a second or so; an emulated device says by itself what it takes."""
    kind, cores = choose_device(config.device).kind, usable_cores()
    ranks = config.parallel.devices if config.parallel.mode in ("ddp", "fsdp") else 1
    ranks = ranks if isinstance(ranks, int) else 1
    needed, why = _device_pace(config, ranks)
    if needed is None:
        return CheckResult("pace", "warning", f"no step could be timed: {why}", "use a smaller batch; see flatout fit")
    each = measure_costs(config, 0.0).seconds
    workers = choose_workers(config.data.workers, max(1, cores // ranks), kind).value
    return judge_pace(Pace(needed, max(each, 1e-7), workers, cores, ranks), config)


def _device_pace(config: Config, ranks: int) -> tuple[float | None, str]:
    """Images a second of one rank's steps without loading, or why nothing is known."""
    if choose_device(config.device).kind == "emulated":
        batch = choose_sample_batch(config.data, ranks).per_rank
        seconds = config.emulated.base_seconds * config.train.accumulate + config.emulated.seconds_per_sample * batch
        return (batch / seconds, "") if seconds > 0 else (math.inf, "")
    recipe = config.model_dump(mode="json", by_alias=True)
    recipe.pop("parallel", None)
    try:
        return measure(recipe, _DEVICE_SECONDS, synthetic=True).samples_per_second, ""
    except (RuntimeError, MemoryError) as error:  # what torch raises where memory does not suffice
        return None, (str(error).splitlines() or ["out of memory"])[0]


def judge_pace(pace: Pace, config: Config) -> CheckResult:
    delivered, needed = pace.delivered_per_second, pace.needed_per_second
    who = f"{pace.workers} worker(s)" if pace.workers else "the training thread itself, without workers,"
    shared = f" of {pace.ranks} ranks" if pace.ranks > 1 else ""
    text = (
        f"the device takes {_rate(needed)} images/s{' a rank' if pace.ranks > 1 else ''}; {who} at "
        f"{format_seconds(pace.sample_seconds)} an image prepare{'' if pace.workers > 1 else 's'} "
        f"{_rate(delivered)} on {pace.cores} core(s){shared}"
    )
    if delivered >= _ENOUGH * needed:
        return CheckResult("pace", "ok", text)
    text += f": it waits {100 * (1 - delivered / needed):.0f} % of the time"
    return CheckResult("pace", "warning", text, _remedy(pace, config))


def _remedy(pace: Pace, config: Config) -> str:
    """More workers as far as there are cores for them; then less work for each image."""
    most = max(1, pace.cores // pace.ranks)
    kept = " or data.cache=auto, which decodes once," if config.data.cache == "off" and config.train.epochs > 1 else ""
    less = f"pack smaller or decoded images (flatout data pack){kept} or take a machine with more cores"
    if math.isfinite(pace.needed_per_second) and pace.workers_needed <= most:
        return f"set data.workers to {pace.workers_needed}, or to auto"
    best = most / pace.sample_seconds
    more = f"set data.workers to {most}, for {_rate(best)} images/s; then " if pace.workers < most else ""
    short = f"{pace.workers_needed * pace.ranks} cores" if math.isfinite(pace.needed_per_second) else "more cores"
    return f"{more}{less}: {short} would keep up, {pace.cores} are here"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if math.isfinite(per_second) else "any number of"
