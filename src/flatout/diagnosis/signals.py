"""What a run's files say, as one value: the only thing rules look at. None where a run did not record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flatout.decisions.caching import CacheChoice

WARM_UP_STEPS = 2
"""The first steps of a run import, allocate and tune; they are startup, whatever their name."""
_COLD_RATIO = 1.3


@dataclass(frozen=True)
class Step:
    epoch: int
    batch_index: int
    samples: int
    seconds: float
    wait_seconds: float
    loss: float | None = None
    end_unix: float | None = None
    cpu_seconds: float | None = None
    """Of the training thread, after the data came."""

    @property
    def own_seconds(self) -> float:
        """All of the step that is not waiting for data."""
        return self.seconds - self.wait_seconds


@dataclass(frozen=True)
class Epoch:
    number: int
    train_loss: float | None = None
    val_loss: float | None = None
    top1: float | None = None


@dataclass(frozen=True)
class BatchLoad:
    """What a worker did for one training batch."""

    step: int
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    augment_seconds: float = 0.0
    collate_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.fetch_seconds + self.decode_seconds + self.augment_seconds + self.collate_seconds


@dataclass(frozen=True)
class Store:
    """Requests to an object store."""

    requests: int
    retries: int | None = None
    throttles: int | None = None
    request_seconds_p50: float | None = None
    request_seconds_p99: float | None = None
    request_seconds_p05: float | None = None
    """What the store and the way to it take: the rest is queues, and work on this machine."""


@dataclass(frozen=True)
class Shared:
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
    cold_starts: int = 0


@dataclass(frozen=True)
class System:
    """Samples of the machine over the run, oldest first; empty where nothing was read."""

    seconds: tuple[float, ...] = ()
    cpu_share: tuple[float, ...] = ()
    """Of the cores this process may use, 0 to 1, all processes."""
    process_cores: tuple[float, ...] = ()
    """Cores that this process and its workers used."""
    resident_bytes: tuple[float, ...] = ()
    """Of the process tree, without mapped files and shared caches, which have their bounds."""
    available_bytes: tuple[float, ...] = ()
    disk_read_bytes_per_second: tuple[float, ...] = ()
    disk_busy_share: tuple[float, ...] = ()
    device_busy_share: tuple[float, ...] = ()
    device_clock_share: tuple[float, ...] = ()
    device_celsius: tuple[float, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """What only a run on several ranks knows."""

    world_size: int
    nodes: int = 1
    mode: str = "ddp"
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
    faster_interface: str | None = None
    agree: bool | None = None


@dataclass(frozen=True)
class Signals:
    """One run. Seconds of `parts` are exclusive and add up to `wall_seconds`."""

    wall_seconds: float
    parts: Mapping[str, float]
    status: str = "completed"
    cause: str | None = None
    device_kind: str = "cpu"
    device_count: int = 1
    cores: int = 1
    threads: int = 1
    batch_size: int = 1
    batch_tokens: int | None = None
    """Where batches are cut by tokens; batch_size is then the mean number of samples in one."""
    global_batch: int | None = None
    """Where the recipe sets the batch of all ranks; batch_size is then each rank's part."""
    epochs_planned: int = 1
    steps_planned: int | None = None
    steps: tuple[Step, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    classes: int | None = None
    workers: int = 0
    worker_kind: str = "thread"
    fetchers: int = 0
    prefetch: int = 1
    remote: bool = False
    staged: bool = False
    cache: str = "off"
    """data.cache of the recipe."""
    cache_choice: CacheChoice | None = None
    """What the loader made of it; None for a run that did not write it down."""
    python_augment: bool = False
    samples_loaded: int | None = None
    """Training and validation samples that were prepared, over which the seconds below are summed."""
    fetch_seconds: float | None = None
    decode_seconds: float | None = None
    augment_seconds: float | None = None
    bytes_read: float | None = None
    dataset_bytes: float | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    loads: tuple[BatchLoad, ...] = ()
    queue_depths: tuple[float, ...] = ()
    store: Store | None = None
    shared: Shared | None = None
    system: System = field(default_factory=System)
    memory_total_bytes: float | None = None
    device_memory_peak_bytes: float | None = None
    device_memory_total_bytes: float | None = None
    emulated_base_seconds: float | None = None
    emulated_seconds_per_sample: float | None = None
    precision: str = "fp32"
    channels_last: bool = True
    compiled: bool = False
    checkpointing: bool = False
    accumulate: int = 1
    log_every: int = 1
    flops_share: float | None = None
    """Model FLOP/s over the device's peak."""
    import_seconds: float | None = None
    """Of the startup: interpreter and imports."""
    startup_parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the last attempt's start by name, the wait for the first batch among them."""
    validations: int = 0
    validate_every: int = 1
    checkpoints: int = 0
    checkpoint_every_steps: int | None = None
    ranks: Ranks | None = None
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    spot: bool = False
    cross_zone_bytes: float | None = None
    usd_per_gb_cross_zone: float | None = None
    prediction_errors: tuple[float, ...] = ()
    """Relative errors of predictions this run can be held against."""

    # -- derived: steps

    @cached_property
    def warm_steps(self) -> tuple[Step, ...]:
        """Ordinary steps: after the first two, after a cold first epoch, and none that begins an epoch (a gap there
        has a rule of its own)."""
        later = self.steps[WARM_UP_STEPS:] or self.steps
        later = tuple(step for step in later if step.batch_index > 0) or later
        if self.fills_cache or (self.cold_ratio is not None and self.cold_ratio > _COLD_RATIO):
            return tuple(step for step in later if step.epoch != self.steps[0].epoch) or later
        return later

    @property
    def fills_cache(self) -> bool:
        """The first epoch keeps what later ones find: its samples cost something else."""
        return self.cache_choice is not None and self.cache_choice.value != "off"

    @property
    def cache_is_worth_a_try(self) -> bool:
        """Nothing is kept, and the loader did not decide that by itself."""
        choice = self.cache_choice
        return self.cache == "off" and self.epochs_planned > 1 and (choice is None or not choice.declined)

    @cached_property
    def cold_ratio(self) -> float | None:
        """Mean step of the first epoch over that of the later ones; None where there are no later ones."""
        if not self.steps:
            return None
        first = [step.seconds for step in self.steps[WARM_UP_STEPS:] if step.epoch == self.steps[0].epoch]
        later = [step.seconds for step in self.steps if step.epoch != self.steps[0].epoch]
        return _mean(first) / _mean(later) if first and later and _mean(later) > 0 else None

    @cached_property
    def step_seconds(self) -> float:
        return _mean([step.seconds for step in self.warm_steps])

    @cached_property
    def wait_seconds(self) -> float:
        return _mean([step.wait_seconds for step in self.warm_steps])

    @property
    def own_seconds(self) -> float:
        """G and all else that is not waiting for data, of a step."""
        return self.step_seconds - self.wait_seconds

    @property
    def wait_share(self) -> float:
        return self.wait_seconds / self.step_seconds if self.step_seconds > 0 else 0.0

    @cached_property
    def batch(self) -> float:
        """Mean samples of a step."""
        return _mean([step.samples for step in self.warm_steps]) if self.warm_steps else float(self.batch_size)

    @cached_property
    def warm_up_seconds(self) -> float:
        """What the first steps took beyond an ordinary one."""
        ordinary = self.own_seconds
        return sum(max(0.0, step.own_seconds - ordinary) for step in self.steps[:WARM_UP_STEPS])

    @property
    def startup_seconds(self) -> float:
        return self.part("startup") + self.warm_up_seconds

    @property
    def steps_done(self) -> int:
        return len(self.steps)

    def part(self, name: str) -> float:
        return self.parts.get(name) or 0.0

    def share(self, seconds: float) -> float:
        return seconds / self.wall_seconds if self.wall_seconds > 0 else 0.0

    def batch_change(self, batch_size: int) -> dict[str, int]:
        """The change of the recipe that gives batches of this size."""
        if self.global_batch is not None:
            return {"data.global_batch": batch_size * max(1, round(self.global_batch / self.batch_size))}
        if self.batch_tokens is None:
            return {"data.batch_size": batch_size}
        return {"data.batch_tokens": round(self.batch_tokens * batch_size / self.batch_size)}

    # -- derived: loading

    @cached_property
    def load(self) -> BatchLoad | None:
        """Mean work for one batch of the warm steps: from the workers' lanes, else from the run's totals. None where
        others did it."""
        if self.shared is not None:
            return None
        if self.loads:
            ordinary = {id(step) for step in self.warm_steps}
            numbers = {number for number, step in enumerate(self.steps, 1) if id(step) in ordinary}
            warm = [each for each in self.loads if each.step in numbers] or list(self.loads)
            return BatchLoad(
                0,
                _mean([each.fetch_seconds for each in warm]),
                _mean([each.decode_seconds for each in warm]),
                _mean([each.augment_seconds for each in warm]),
                _mean([each.collate_seconds for each in warm]),
            )
        if not self.samples_loaded or self.decode_seconds is None:
            return None
        per_sample = self.batch / self.samples_loaded
        return BatchLoad(
            0,
            (self.fetch_seconds or 0.0) * per_sample,
            self.decode_seconds * per_sample,
            (self.augment_seconds or 0.0) * per_sample,
        )

    @property
    def hands(self) -> int:
        """Workers that can be at work at once: no more than batches may be prepared ahead."""
        return min(self.workers, self.prefetch)

    @property
    def starved(self) -> bool:
        return self.wait_share > 0.10

    @property
    def late_seconds(self) -> float:
        """Of a step on an emulated device, which knows how long it must take: what it took more, where that is much."""
        base, each = self.emulated_base_seconds, self.emulated_seconds_per_sample
        if base is None or each is None or not self.steps_done:
            return 0.0
        expected = base + each * self.batch
        late = (self.part("forward") + self.part("backward")) / self.steps_done - expected
        return late if expected > 0 and late > max(0.25 * expected, 0.005) else 0.0

    @property
    def fetch_bound(self) -> bool:
        """The store or the disk sets the pace, not decoding."""
        load = self.load
        if load is None or load.seconds <= 0:
            return False
        if self.fetchers:
            work = (load.seconds - load.fetch_seconds) / max(1, min(self.workers, self.cores))
            return load.fetch_seconds / self.fetchers > work
        return load.fetch_seconds > 0.5 * load.seconds

    @property
    def work_seconds(self) -> float:
        """Of one batch: what needs a core."""
        return self.load.seconds - self.load.fetch_seconds if self.load else 0.0

    @cached_property
    def cores_busy(self) -> float:
        """Cores that this run itself keeps busy while it steps."""
        if self.step_seconds <= 0:
            return 0.0
        computing = (
            self.own_seconds * min(self.threads, self.cores) if self.device_kind == "cpu" else self._host_seconds
        )
        return (computing + self.work_seconds) / self.step_seconds

    @property
    def _host_seconds(self) -> float:
        """Beside an accelerator: the main thread's own work of a step."""
        steps = max(1, self.steps_done)
        warm_up = self.warm_up_seconds if self.part("optimizer") > self.warm_up_seconds else 0.0
        return (self.part("optimizer") + self.part("copy") + self.part("other") - warm_up) / steps

    @property
    def other_cores(self) -> float:
        """Cores that other processes took while this run went on; 0 where nobody looked."""
        cpu, own = self.system.cpu_share, self.system.process_cores
        return max(0.0, _mean(list(cpu)) * self.cores - _mean(list(own))) if cpu and own else 0.0

    @property
    def idle_cores(self) -> float:
        return max(0.0, self.cores - self.cores_busy)

    @property
    def cores_saturated(self) -> bool:
        return self.cores_busy >= 0.8 * self.cores

    def loading_seconds(self, workers: int, fetch_factor: float = 1.0, work_factor: float = 1.0) -> float:
        """1 / rate with so many workers, and fetching or decoding at a share of its cost."""
        if self.load is None:
            return self.step_seconds
        fetch, work = self.load.fetch_seconds * fetch_factor, self.work_seconds * work_factor
        hands = max(1, min(workers, self.cores))
        if self.fetchers or (self.remote and self.workers == 0):
            return max(fetch / max(4, self.fetchers), work / hands)
        return max((fetch + work) / max(1, workers), work / self.cores)

    def step_with(self, workers: int, fetch_factor: float = 1.0, work_factor: float = 1.0) -> float:
        """The step if loading went on beside it; on a CPU that trains, both share the cores."""
        shared = 0.0
        if self.device_kind == "cpu":
            shared = (self.own_seconds * min(self.threads, self.cores) + self.work_seconds * work_factor) / self.cores
        return max(self.own_seconds, self.loading_seconds(workers, fetch_factor, work_factor), shared)


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
