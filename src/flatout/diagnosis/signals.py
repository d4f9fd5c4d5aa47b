"""What a run's files say, as one value: the only thing rules look at."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from functools import cached_property

from flatout.analysis.rank_spans import BatchLoad
from flatout.diagnosis.contention import Contention, by_part, holders, threads_delay_share
from flatout.diagnosis.script_signals import ScriptSignals
from flatout.diagnosis.signal_groups import (
    CostSignals,
    DeviceSignals,
    HostSignals,
    InputSignals,
    LearningSignals,
    RankSignals,
    RecipeSignals,
    StepSignals,
    TimeSignals,
    mean,
)
from flatout.runs.steps import StepRow

_LEAST_FETCHERS = 4  # requests in flight where the training thread itself reads from a store


@dataclass(frozen=True)
class Signals:
    """One run. What follows from one group is a property of that group; what follows from several is one here."""

    time: TimeSignals
    steps: tuple[StepRow, ...] = ()
    """All that count, in order."""
    status: str = "completed"
    cause: str | None = None
    recipe: RecipeSignals = field(default_factory=RecipeSignals)
    input: InputSignals = field(default_factory=InputSignals)
    device: DeviceSignals = field(default_factory=DeviceSignals)
    host: HostSignals = field(default_factory=HostSignals)
    learning: LearningSignals = field(default_factory=LearningSignals)
    cost: CostSignals = field(default_factory=CostSignals)
    ranks: RankSignals | None = None
    script: ScriptSignals | None = None
    """Of a recorded script; None for flatout's own runs."""
    prediction_errors: tuple[float, ...] = ()
    """Relative errors of predictions this run can be held against."""

    @cached_property
    def step(self) -> StepSignals:
        return StepSignals(self.steps, self.input.fills_cache)

    @property
    def batch(self) -> float:
        """Mean samples of a step; what the recipe says where there are no steps."""
        return self.step.samples if self.step.warm else float(self.recipe.batch_size)

    @property
    def world_size(self) -> int:
        return self.ranks.world_size if self.ranks is not None else 1

    @property
    def ranks_near(self) -> int:
        """Ranks on this machine, this one among them."""
        return self.ranks.near if self.ranks is not None else 1

    @cached_property
    def contention(self) -> Contention:
        """What parts of the run only waited for a core, and who had it."""
        time = self.time
        several = self.device.kind == "cpu" and self._computing_threads > 1
        helpers = threads_delay_share(self.host) if several else 0.0
        stepping = sum(step.seconds for step in self.steps) if self.step.starved else 0.0
        alone = not self.input.workers  # then the main thread's own wait has it already
        loading = 0.0 if self.load is None or alone else self.load.core_wait_share * stepping
        return Contention(by_part(time.parts, time.core_wait, helpers, loading), holders(self.host))

    def net(self, *parts: str) -> float:
        """Seconds of the ledger's parts, without those that others than this run kept a core from them."""
        return sum(self.time.part(name) for name in parts) - self.contention.outside(*parts)

    @property
    def data_wait_share(self) -> float:
        """Of the run; without what only waited for a core."""
        return self.time.share(self.net("data_wait"))

    @property
    def startup_seconds(self) -> float:
        return self.time.part("startup") + self.step.warm_up_seconds

    @property
    def cache_is_worth_a_try(self) -> bool:
        """Nothing is kept, and the loader did not decide that by itself."""
        choice = self.input.cache_choice
        return self.input.cache == "off" and self.recipe.epochs > 1 and (choice is None or not choice.declined)

    @cached_property
    def load(self) -> BatchLoad | None:
        """Mean work for one batch of the warm steps: from the workers' lanes, else from the run's totals. None where
        others did it."""
        given = self.input
        if given.shared is not None:
            return None
        if given.loads:
            ordinary = {id(step) for step in self.step.warm}
            numbers = {number for number, step in enumerate(self.steps, 1) if id(step) in ordinary}
            warm = [each for each in given.loads if each.step in numbers] or list(given.loads)
            _, *columns = zip(*map(astuple, warm), strict=True)
            return BatchLoad(0, *map(mean, columns))
        if not given.samples_loaded or given.decode_seconds is None:
            return None
        totals = (given.fetch_seconds or 0.0, given.decode_seconds, given.augment_seconds or 0.0)
        return BatchLoad(0, *(seconds * self.batch / given.samples_loaded for seconds in totals))

    @property
    def work_seconds(self) -> float:
        """Of one batch: what needs a core."""
        return self.load.seconds - self.load.fetch_seconds if self.load else 0.0

    @property
    def fetch_bound(self) -> bool:
        """The store or the disk sets the pace, not decoding."""
        load = self.load
        if load is None or load.seconds <= 0:
            return False
        if self.input.fetchers:
            work = (load.seconds - load.fetch_seconds) / max(1, min(self.input.workers, self.host.cores))
            return load.fetch_seconds / self.input.fetchers > work
        return load.fetch_seconds > 0.5 * load.seconds

    @property
    def late_seconds(self) -> float:
        """Of a step on an emulated device, which knows how long it must take: what it took more, where that is much."""
        base, each = self.device.emulated_base_seconds, self.device.emulated_seconds_per_sample
        if base is None or each is None or not self.step.done:
            return 0.0
        expected = base * self.recipe.accumulate + each * self.batch
        late = self.time.computing_seconds / self.step.done - expected
        return late if expected > 0 and late > max(0.25 * expected, 0.005) else 0.0

    @property
    def _computing_threads(self) -> int:
        return min(self.host.threads, self.host.cores)

    @cached_property
    def cores_busy(self) -> float:
        """Cores that this run itself keeps busy while it steps."""
        if self.step.seconds <= 0:
            return 0.0
        on_cpu = self.device.kind == "cpu"
        computing = self.step.own_seconds * self._computing_threads if on_cpu else self._host_seconds
        return (computing + self.work_seconds) / self.step.seconds

    @property
    def _host_seconds(self) -> float:
        """Beside an accelerator: the main thread's own work of a step."""
        optimizer, warm_up = self.time.part("optimizer"), self.step.warm_up_seconds
        own = optimizer + self.time.part("copy") + self.time.part("other")
        return (own - (warm_up if optimizer > warm_up else 0.0)) / max(1, self.step.done)

    @property
    def idle_cores(self) -> float:
        return max(0.0, self.host.cores - self.cores_busy)

    @property
    def cores_saturated(self) -> bool:
        return self.cores_busy >= 0.8 * self.host.cores

    def loading_seconds(self, workers: int, fetch_factor: float = 1.0, work_factor: float = 1.0) -> float:
        """1 / rate with so many workers, and fetching or decoding at a share of its cost."""
        if self.load is None:
            return self.step.seconds
        fetch, work, cores = self.load.fetch_seconds * fetch_factor, self.work_seconds * work_factor, self.host.cores
        if self.input.fetchers or (self.input.remote and self.input.workers == 0):
            return max(fetch / max(_LEAST_FETCHERS, self.input.fetchers), work / max(1, min(workers, cores)))
        return max((fetch + work) / max(1, workers), work / cores)

    def step_with(self, workers: int, fetch_factor: float = 1.0, work_factor: float = 1.0) -> float:
        """The step if loading went on beside it (without workers: before it); on a CPU that trains, both share the
        cores."""
        own, shared = self.step.own_seconds, 0.0
        if workers == 0:
            return own + self.loading_seconds(0, fetch_factor, work_factor)
        if self.device.kind == "cpu":
            shared = (own * self._computing_threads + self.work_seconds * work_factor) / self.host.cores
        return max(own, self.loading_seconds(workers, fetch_factor, work_factor), shared)
