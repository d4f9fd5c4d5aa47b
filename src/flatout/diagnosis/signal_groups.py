"""What a run's files say, by where it belongs: the groups that `Signals` is made of. None where it was not recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from flatout.analysis.rank_spans import BatchLoad
from flatout.decisions.caching import CacheChoice
from flatout.runs.steps import StepRow

WARM_UP_STEPS = 2
"""The first steps of a run import, allocate and tune; they are startup, whatever their name."""
_COLD_RATIO = 1.3
_STARVED_SHARE = 0.10  # of a step


@dataclass(frozen=True)
class TimeSignals:
    """The ledger of the main thread. Seconds of `parts` are exclusive and add up to `wall_seconds`."""

    wall_seconds: float
    parts: Mapping[str, float]
    import_seconds: float | None = None
    """Of the startup: interpreter and imports."""
    core_wait: Mapping[str, float] = field(default_factory=dict)
    """Seconds of `parts` for which the main thread was ready and had no core."""
    startup_parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the last attempt's start by name, the wait for the first batch among them."""
    validations: int = 0
    """That gave a figure."""
    validation_spans: int = 0
    """Stretches of the main thread that validated, each in one go."""
    checkpoints: int = 0
    checkpoint_bytes: float | None = None
    """Of one of them, on average."""

    def part(self, name: str) -> float:
        return self.parts.get(name) or 0.0

    def share(self, seconds: float) -> float:
        """Of the wall clock."""
        return seconds / self.wall_seconds if self.wall_seconds > 0 else 0.0

    @property
    def computing_seconds(self) -> float:
        return self.part("forward") + self.part("backward")

    @property
    def after_start_seconds(self) -> float:
        return self.wall_seconds - self.part("startup")


@dataclass(frozen=True)
class StepSignals:
    """Means over ordinary steps. `fills_cache`: the first epoch keeps what later ones find, so it is not ordinary."""

    rows: tuple[StepRow, ...]
    fills_cache: bool = False

    @cached_property
    def warm(self) -> tuple[StepRow, ...]:
        """Ordinary steps: after the first two, after a cold first epoch, and none that begins an epoch (a gap there
        has a rule of its own)."""
        later = self.rows[WARM_UP_STEPS:] or self.rows
        later = tuple(step for step in later if step.batch_index > 0) or later
        return tuple(step for step in later if not self._is_cold(step)) or later

    @cached_property
    def alike(self) -> int:
        """Steps in which a change saves what it saves in warm ones: those that begin a run or an epoch, too."""
        return sum(not self._is_cold(step) for step in self.rows) or len(self.rows)

    def _is_cold(self, step: StepRow) -> bool:
        cold = self.fills_cache or (self.cold_ratio is not None and self.cold_ratio > _COLD_RATIO)
        return cold and step.epoch == self.rows[0].epoch

    @cached_property
    def cold_ratio(self) -> float | None:
        """A step of later epochs with the first one's wait for data, over one without; None where there are no later
        ones. A first epoch that only computes more slowly is not cold."""
        if not self.rows:
            return None
        first = [step.wait_seconds for step in self.rows[WARM_UP_STEPS:] if step.epoch == self.rows[0].epoch]
        later = [step for step in self.rows if step.epoch != self.rows[0].epoch]
        usual = mean([step.seconds for step in later])
        if not first or usual <= 0:
            return None
        return 1 + max(0.0, mean(first) - mean([step.wait_seconds for step in later])) / usual

    @property
    def done(self) -> int:
        return len(self.rows)

    @cached_property
    def seconds(self) -> float:
        return mean([step.seconds for step in self.warm])

    @cached_property
    def wait_seconds(self) -> float:
        return mean([step.wait_seconds for step in self.warm])

    @property
    def own_seconds(self) -> float:
        """G of the model, and all else of a step that is not waiting for data."""
        return self.seconds - self.wait_seconds

    @property
    def wait_share(self) -> float:
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def starved(self) -> bool:
        """Steps wait for data."""
        return self.wait_share > _STARVED_SHARE

    @cached_property
    def samples(self) -> float:
        """Of a step; 0 where there are no steps."""
        return mean([step.samples for step in self.warm])

    @cached_property
    def warm_up_seconds(self) -> float:
        """What the first steps took beyond an ordinary one."""
        return sum(max(0.0, step.own_seconds - self.own_seconds) for step in self.rows[:WARM_UP_STEPS])


@dataclass(frozen=True)
class RecipeSignals:
    """Keys of the recipe that rules look at and change."""

    batch_size: int = 1
    batch_tokens: int | None = None
    """Where batches are cut by tokens; batch_size is then the mean number of samples in one."""
    global_batch: int | None = None
    """Where the recipe sets the batch of all ranks; batch_size is then each rank's part."""
    epochs: int = 1
    checkpointing: bool = False
    accumulate: int = 1
    log_every: int = 1
    validate_every: int = 1
    """Epochs."""
    checkpoint_every_steps: int | None = None
    checkpoint_every_epochs: int = 1

    def batch_change(self, batch_size: int) -> dict[str, int]:
        """The change of the recipe that gives batches of this size."""
        if self.global_batch is not None:
            return {"data.global_batch": batch_size * max(1, round(self.global_batch / self.batch_size))}
        if self.batch_tokens is None:
            return {"data.batch_size": batch_size}
        return {"data.batch_tokens": round(self.batch_tokens * batch_size / self.batch_size)}


@dataclass(frozen=True)
class StoreRequests:
    """Requests to an object store."""

    requests: int
    retries: int | None = None
    throttles: int | None = None
    request_seconds_p50: float | None = None
    request_seconds_p99: float | None = None
    request_seconds_p05: float | None = None
    """What the store and the way to it take: the rest is queues, and work on this machine."""


@dataclass(frozen=True)
class SharedBatches:
    """Batches that came from a service, and what that service did while this job was there."""

    batches: int
    """That this job took, from wherever."""
    local: int = 0
    """Made here, because the service did not have them in time."""
    answers: int = 0
    busy_answers: int = 0
    """Answers that came when no producer was free."""
    made: int = 0
    evicted_needed: int = 0
    """Thrown away before every job had read them."""
    cold_starts: int = 0


@dataclass(frozen=True)
class InputSignals:
    """How batches are prepared, and what that took."""

    workers: int = 0
    worker_kind: str = "thread"
    fetchers: int = 0
    """Threads that wait for a store beside the workers."""
    prefetch: int = 1
    """Batches prepared ahead."""
    remote: bool = False
    staged: bool = False
    cache: str = "off"
    """data.cache of the recipe."""
    cache_choice: CacheChoice | None = None
    """What the loader made of it; None for a run that did not write it down."""
    python_augment: bool = False
    """Threads augment in Python, which holds the interpreter's lock."""
    samples_loaded: int | None = None
    """Training and validation samples that were prepared, over which the seconds below are summed."""
    fetch_seconds: float | None = None
    decode_seconds: float | None = None
    augment_seconds: float | None = None
    bytes_read: float | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    loads: tuple[BatchLoad, ...] = ()
    store: StoreRequests | None = None
    shared: SharedBatches | None = None

    @property
    def active_workers(self) -> int:
        """Workers that can be at work at once: no more than batches may be prepared ahead."""
        return min(self.workers, self.prefetch)

    @property
    def fills_cache(self) -> bool:
        """The first epoch keeps what later ones find: its samples cost something else."""
        return self.cache_choice is not None and self.cache_choice.value != "off"


@dataclass(frozen=True)
class DeviceSignals:
    """What computes the steps. Tuples are samples over the run, oldest first; empty where nothing was read."""

    kind: str = "cpu"
    memory_peak_bytes: float | None = None
    memory_total_bytes: float | None = None
    emulated_base_seconds: float | None = None
    emulated_seconds_per_sample: float | None = None
    clock_share: tuple[float, ...] = ()
    """Of the highest clock."""
    celsius: tuple[float, ...] = ()


@dataclass(frozen=True)
class HostRow:
    """One row of system.csv: the CPU over `seconds`. None where it was not read."""

    seconds: float
    cpu_share: float | None = None
    process_cores: float | None = None
    waiting_cores: float | None = None
    """Threads of this run that were ready and had no core, on average."""
    throttled_cores: float | None = None
    """Cores that a quota held back, on average."""
    steal_share: float | None = None


@dataclass(frozen=True)
class HostSignals:
    """The machine. Tuples are samples over the run, oldest first; empty where nothing was read."""

    cores: int = 1
    """That this process may use: of several ranks on one machine, each its part."""
    machine_cores: int = 1
    """That all ranks on this machine may use together, whatever a quota says."""
    quota_cores: float | None = None
    """Of a container; None without a quota."""
    rows: tuple[HostRow, ...] = ()
    threads: int = 1
    """That compute, where the device is the CPU."""
    memory_total_bytes: float | None = None
    seconds: tuple[float, ...] = ()
    """When the samples were taken."""
    cpu_share: tuple[float, ...] = ()
    """Of `cores`, 0 to 1, all processes."""
    process_cores: tuple[float, ...] = ()
    """Cores that this process and its workers used."""
    resident_bytes: tuple[float, ...] = ()
    """Of the process tree, without mapped files and shared caches, which have their bounds."""
    available_bytes: tuple[float, ...] = ()
    disk_read_bytes_per_second: tuple[float, ...] = ()
    disk_busy_share: tuple[float, ...] = ()

    @property
    def other_cores(self) -> float:
        """Cores that other processes took while this run went on; 0 where it was not recorded."""
        if not self.cpu_share or not self.process_cores:
            return 0.0
        return max(0.0, mean(self.cpu_share) * max(self.cores, self.machine_cores) - mean(self.process_cores))


@dataclass(frozen=True)
class Epoch:
    """What one epoch learnt."""

    number: int
    train_loss: float | None = None
    val_loss: float | None = None
    top1: float | None = None


@dataclass(frozen=True)
class LearningSignals:
    """The learning curves."""

    epochs: tuple[Epoch, ...] = ()
    classes: int | None = None
    train_samples: int | None = None
    val_samples: int | None = None
    label_smoothing: float = 0.0
    mixes_samples: bool = False
    """Mixed or recoloured samples make the training loss higher than the validation's."""


@dataclass(frozen=True)
class RankSignals:
    """What only a run on several ranks knows."""

    world_size: int
    nodes: int = 1
    gradient_bytes: float | None = None
    buckets: tuple[tuple[float, float], ...] = ()
    """Bytes, and when in a step they are ready to be sent."""
    latency_seconds: float = 0.0
    communication_seconds: float | None = None
    """Exposed, of one step."""
    arrival_seconds: tuple[float, ...] = ()
    """Per rank: mean time from the start of a step to its first all-reduce."""
    backend: str | None = None
    interface: str | None = None
    link_bits_per_second: float | None = None
    """As measured by an exchange before the first step."""
    cap_bits_per_second: float | None = None
    """The port speed that the measured link sits at."""
    peak_bits_per_second: float | None = None

    @property
    def near(self) -> int:
        """Ranks on one machine."""
        return max(1, self.world_size // max(1, self.nodes))


@dataclass(frozen=True)
class CostSignals:
    """Prices of all machines of the run together."""

    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    spot: bool = False


def mean(values: Sequence[float]) -> float:
    """0 of no values."""
    return sum(values) / len(values) if values else 0.0
