"""What the coordinator knows about streams, jobs, producers, buffers and leases."""

from dataclasses import dataclass, field

from flatout.service.coordinator.policy import MOST_AT_ONCE
from flatout.service.protocol.stream_spec import StreamSpec

Key = tuple[str, int, int]  # stream, epoch, index
_UNKNOWN_STEP_SECONDS = 1e-3  # of a job that has not said how fast it is


@dataclass
class Stream:
    """Batches that jobs share: everything that determines them is in the spec, and so in its name."""

    name: str
    spec: StreamSpec
    batches_per_epoch: int
    batch_bytes: int
    refused: str | None = None  # no batch of it can be made here
    stops_jobs: bool = False  # because its data is not what the jobs say it is
    make_seconds: float | None = None  # of one batch, measured


@dataclass
class Waiting:
    position: int
    count: int
    until: float
    since: float
    ready: int = 0  # of these, from the first on, that have been seen to be there


@dataclass
class Job:
    """A reader of one stream. Position 0 is the batch (`epoch`, `index`); each epoch wraps round at its end."""

    name: str
    stream: Stream
    position: int
    last: int | None
    epoch: int = 0
    index: int = 0
    step_seconds: float | None = None
    asked_at: float = 0.0
    waiting: Waiting | None = None
    held: dict[int, int] = field(default_factory=dict)  # buffer -> times
    asks: dict[int, int] = field(default_factory=dict)  # position -> times, for positions not served yet
    share_began: tuple[float, float] = (0.0, 0.0)  # readings of the clocks that are shared, when it came
    counts_began: tuple[int, int, int] = (0, 0, 0)
    share_gb_seconds: float = 0.0
    share_requests: float = 0.0
    checked: tuple[int, int] = (-1, 0)  # up to which position nothing is missing, if no batch was lost since then

    def key(self, position: int) -> Key:
        epochs, within = divmod(position, self.stream.batches_per_epoch)
        return self.stream.name, self.epoch + epochs, (self.index + within) % self.stream.batches_per_epoch

    def position_of(self, key: Key) -> int:
        """Negative for batches of epochs before its first."""
        count = self.stream.batches_per_epoch
        return (key[1] - self.epoch) * count + (key[2] - self.index) % count

    def will_read(self, position: int) -> bool:
        return position >= self.position and (self.last is None or position < self.last)

    def will_read_all(self, other: "Job", start: int, end: int) -> bool:
        """That `other` reads at these positions; said only where both have the same order."""
        same = self.stream is other.stream and self.epoch == other.epoch and self.index == other.index
        return same and self.position <= start and (self.last is None or end <= self.last)

    def pace_seconds(self, now: float) -> float:
        """Of one step; a job that has not asked for long is slower than it was."""
        return max(self.step_seconds or _UNKNOWN_STEP_SECONDS, (now - self.asked_at) / MOST_AT_ONCE)

    def eta_seconds(self, key: Key, now: float) -> float | None:
        """In how many seconds it will need the batch; None if never."""
        if key[0] != self.stream.name:
            return None
        position = self.position_of(key)
        if not self.will_read(position):
            return None
        return (position - self.position) * self.pace_seconds(now)


@dataclass
class Producer:
    name: str
    slots: int = 0
    spare: int = 0  # orders that may wait at it beyond these
    usd_per_second: float = 0.0
    seconds_to_start: float = 0.0
    leases: set[int] = field(default_factory=set)
    streams: set[str] = field(default_factory=set)  # whose spec it has

    @property
    def free(self) -> int:
        return self.slots - len(self.leases)


@dataclass
class Buffer:
    number: int
    bytes: int
    key: Key | None = None
    ready: bool = False
    in_doubt: bool = False  # somebody who may still write or read it is out of sight: never written again
    readers: int = 0
    used_at: float = 0.0
    touched_at: float = 0.0


@dataclass
class Lease:
    number: int
    key: Key
    holder: str
    buffer: int
    began: float
    expires: float
    charged_usd: float = 0.0


@dataclass
class Counts:
    """Everything that is counted, for `flatout cache`, summaries and costs."""

    asks: int = 0
    hits: int = 0  # ready when asked for
    waited: int = 0  # ready before the asker's patience ended
    denied: int = 0
    made: int = 0
    made_bytes: int = 0
    made_seconds: float = 0.0
    gb_seconds: float = 0.0
    requests: int = 0
    cold_starts: int = 0
    written_back: int = 0
    failures: int = 0
    expired: int = 0
    spoilt: int = 0
    evicted: int = 0
    evicted_needed: int = 0  # although a job would have read it
    no_room: int = 0

    @property
    def of_interest(self) -> tuple[int, int, int]:
        """What tells a job whether the service does well: batches made, thrown away too early, first by a new hand."""
        return self.made, self.evicted_needed, self.cold_starts
