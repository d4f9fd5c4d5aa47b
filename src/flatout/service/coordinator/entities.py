"""The records that the coordinator keeps: streams, jobs, producers, buffers, leases and counters."""

from dataclasses import dataclass, field

from flatout.service.coordinator.policy import MAX_BATCHES_PER_ASK
from flatout.service.protocol.stream_spec import StreamSpec

BatchId = tuple[str, int, int]
"""Stream name, epoch, index within the epoch."""

_UNKNOWN_STEP_SECONDS = 1e-3  # assumed of a job that has not measured its step yet


@dataclass
class Stream:
    """Batches that several jobs read. The name is a digest of the spec, so equal names mean equal batches."""

    name: str
    spec: StreamSpec
    batches_per_epoch: int
    batch_bytes: int  # size of a buffer for the largest batch of the stream
    refused: str | None = None  # why no batch of the stream can be made here; None while it can
    stops_jobs: bool = False
    """With `refused`: the data is not what the jobs say it is, so they must end instead of reading it themselves."""
    make_seconds: float | None = None
    """Running mean of the time that one batch takes to make, without cold starts; None before the first."""


@dataclass
class WaitingAsk:
    """A `Next` of a job that has not been answered yet. Times are those of the coordinator's clock."""

    position: int
    count: int  # most batches that the answer may hold
    until: float
    since: float
    ready: int = 0  # batches from `position` on that were found in the cache at the last look; saves looking again


@dataclass
class SharingJob:
    """A reader of one stream. Position 0 is the batch (`epoch`, `index`); within an epoch the index wraps around."""

    name: str
    stream: Stream
    position: int  # the next position that the job will ask for
    last: int | None  # the position before which it stops; None if it did not say
    epoch: int = 0
    index: int = 0
    step_seconds: float | None = None
    asked_at: float = 0.0
    waiting: WaitingAsk | None = None
    held: dict[int, int] = field(default_factory=dict)
    """Buffers that it reads now: buffer number -> how many times it was given."""
    asks: dict[int, int] = field(default_factory=dict)  # how often it asked, for positions that are not served yet
    clock_at_start: tuple[float, float] = (0.0, 0.0)  # reading of `Accounts.shared_clock` when it registered
    counters_at_start: tuple[int, int, int] = (0, 0, 0)  # reading of `Counts.counters_for_jobs` when it registered
    share_gb_seconds: float = 0.0
    share_requests: float = 0.0
    scan_cursor: tuple[int, int] = (-1, 0)
    """(losses, position): nothing is missing before the position as long as `BatchCache.losses` has this value."""

    def batch_id(self, position: int) -> BatchId:
        epochs, within = divmod(position, self.stream.batches_per_epoch)
        return self.stream.name, self.epoch + epochs, (self.index + within) % self.stream.batches_per_epoch

    def position_of(self, batch: BatchId) -> int:
        """Inverse of `batch_id`; negative for batches of epochs before the job's first."""
        count = self.stream.batches_per_epoch
        return (batch[1] - self.epoch) * count + (batch[2] - self.index) % count

    def will_read(self, position: int) -> bool:
        return position >= self.position and (self.last is None or position < self.last)

    def will_read_all(self, other: "SharingJob", start: int, end: int) -> bool:
        """Whether it still reads what `other` reads from `start` to before `end`; False unless both have one order."""
        same = self.stream is other.stream and self.epoch == other.epoch and self.index == other.index
        return same and self.position <= start and (self.last is None or end <= self.last)

    def pace_seconds(self, now: float) -> float:
        """Estimated time of one step. A job that has not asked for long is taken to have become slower."""
        return max(self.step_seconds or _UNKNOWN_STEP_SECONDS, (now - self.asked_at) / MAX_BATCHES_PER_ASK)

    def eta_seconds(self, batch: BatchId, now: float) -> float | None:
        """In how many seconds it will need the batch; None if never."""
        if batch[0] != self.stream.name:
            return None
        position = self.position_of(batch)
        if not self.will_read(position):
            return None
        return (position - self.position) * self.pace_seconds(now)


@dataclass
class Producer:
    """A process or pool of function calls that makes batches to order."""

    name: str
    slots: int = 0  # orders that it works on at once; 0 while it starts
    spare: int = 0  # further orders that may queue at it
    usd_per_second: float = 0.0
    seconds_to_start: float = 0.0
    leases: set[int] = field(default_factory=set)
    streams: set[str] = field(default_factory=set)  # streams whose spec it was sent; later orders leave it out

    @property
    def free(self) -> int:
        """Slots without an order; negative while orders queue."""
        return self.slots - len(self.leases)


@dataclass
class Buffer:
    """Room for one batch in the store."""

    number: int
    bytes: int
    batch: BatchId | None = None
    ready: bool = False  # written and verified
    in_doubt: bool = False  # somebody who lost its connection may still access it, so it is never written again
    readers: int = 0
    used_at: float = 0.0
    touched_at: float = 0.0


@dataclass
class Lease:
    """The right of one producer (or job that writes back) to write one batch until `expires`."""

    number: int
    batch: BatchId
    holder: str
    buffer: int
    began: float
    expires: float
    charged_usd: float = 0.0  # estimated cost, charged in advance; replaced by the measured cost when the lease ends


@dataclass
class Counts:
    """Counters since the start of the service, for `flatout cache`, summaries and costs."""

    asks: int = 0
    hits: int = 0  # batches that were ready when they were asked for
    waited: int = 0  # batches that became ready while the answer was held back
    denied: int = 0
    made: int = 0
    made_bytes: int = 0
    made_seconds: float = 0.0
    gb_seconds: float = 0.0
    requests: int = 0
    cold_starts: int = 0
    written_back: int = 0  # batches that jobs made and wrote to the store
    failures: int = 0
    expired: int = 0
    spoilt: int = 0
    evicted: int = 0
    evicted_needed: int = 0  # of `evicted`, those that a job would still have read
    no_room: int = 0

    @property
    def counters_for_jobs(self) -> tuple[int, int, int]:
        """The counters that every answer reports: batches made, evicted although needed, cold starts of producers."""
        return self.made, self.evicted_needed, self.cold_starts
