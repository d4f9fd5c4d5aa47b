"""What a job does next about a batch it needs: pure, so that no answer of a service can make it wait for ever."""

from dataclasses import dataclass

from flatout.service.protocol.messages import Batches

MOST_ASKS = 10
PATIENCE_SECONDS = 10.0
FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 5.0
MOST_MISSES = 3  # batches in a row that the job had to make itself; then it goes without the service for a while
_LONGEST_BACKOFF_SECONDS = 60.0
_NEWEST_WEIGHT = 0.2  # of a step in the running mean
_PAUSE_FACTOR, _PAUSE_SECONDS = 4, 0.001  # a step longer than this many means, and than this, counts as a pause


@dataclass(frozen=True)
class AskHistory:
    """How often, and for how many seconds, a job has asked for one batch."""

    times: int
    seconds: float


@dataclass(frozen=True)
class Take:
    """The answer has the batch."""


@dataclass(frozen=True)
class AskFor:
    """Ask, and let the service hold the answer back for up to `wait_seconds`."""

    wait_seconds: float


@dataclass(frozen=True)
class ComputeLocally:
    reason: str


Action = Take | AskFor | ComputeLocally


def next_action(asked: AskHistory, answer: Batches | None, patience_seconds: float = PATIENCE_SECONDS) -> Action:
    """After `answer` (None before the first): take the batch, ask once more, or make it here."""
    if answer is not None and answer.buffers:
        return Take()
    if answer is not None and answer.denied is not None:
        return ComputeLocally(answer.denied)
    left = patience_seconds - asked.seconds
    if asked.times >= MOST_ASKS or left <= 0:
        return ComputeLocally(f"not ready after {asked.times} asks in {asked.seconds:.1f} s")
    return AskFor(min(FIRST_WAIT_SECONDS * 2**asked.times, _LONGEST_WAIT_SECONDS, left))


def rejoin_backoff_seconds(failures: int) -> float:
    """How long to go without the service after so many failures (at least 1) in a row."""
    return min(2.0 ** (failures - 1), _LONGEST_BACKOFF_SECONDS)


def mean_step(before: float | None, seconds: float) -> float:
    """Running mean of step times. One pause, as for a validation, counts only as a somewhat longer step; a job that has
    become slower shows by many of them."""
    if before is None:
        return seconds
    return before + _NEWEST_WEIGHT * (min(seconds, max(_PAUSE_FACTOR * before, _PAUSE_SECONDS)) - before)
