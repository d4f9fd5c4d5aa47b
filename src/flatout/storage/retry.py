"""Whether to ask a store again, and when: a pure function of what happened so far."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto


class RequestOutcome(Enum):
    """What became of one request that did not give the bytes asked for."""

    THROTTLED = auto()
    """The store answers, and asks for fewer requests (503, 429)."""
    UNREACHABLE = auto()
    """No whole answer: refused, timed out, disconnected, or a server error."""
    DAMAGED = auto()
    """An answer whose length or checksum is wrong."""
    EXPIRED = auto()
    """The credentials were good once."""
    MISSING = auto()
    NO_BUCKET = auto()
    DENIED = auto()
    NO_CREDENTIALS = auto()
    WRONG_REGION = auto()
    BAD_RANGE = auto()
    """The range lies outside the object."""
    NOT_PARTIAL = auto()
    """The server ignores ranges."""
    REFUSED = auto()
    """Any other answer that will not change by asking again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on asking."""

    deadline_seconds: float = 60.0
    """Without a usable answer, counted from the first request for an object."""
    throttle_seconds: float = 180.0
    """The same while the store answers 503: it is alive, and a minute of SlowDown must not end a run."""
    first_delay_seconds: float = 0.05
    max_delay_seconds: float = 5.0
    max_damaged: int = 6
    """Wrong lengths or checksums in a row before the object itself is held to be damaged."""


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """One object's requests so far."""

    attempts: int
    elapsed_seconds: float
    """Since its first request."""
    silent_seconds: float
    """Since any object of this store was read, or since the call began: later objects need not wait all over again."""
    damaged: int = 0
    refreshed: bool = False
    """Credentials were renewed for it already."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    seconds: float
    refresh_credentials: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    pass


def next_attempt(
    outcome: RequestOutcome, asked: RequestHistory, policy: RetryPolicy, uniform: Callable[[], float]
) -> RetryAfter | GiveUp:
    """`uniform` draws from [0, 1): full jitter, so that many workers that failed together do not return together."""
    if outcome is RequestOutcome.EXPIRED and not asked.refreshed:
        return RetryAfter(0.0, refresh_credentials=True)
    if outcome not in (RequestOutcome.THROTTLED, RequestOutcome.UNREACHABLE, RequestOutcome.DAMAGED):
        return GiveUp()
    if outcome is RequestOutcome.DAMAGED and asked.damaged >= policy.max_damaged:
        return GiveUp()
    limit_seconds = policy.throttle_seconds if outcome is RequestOutcome.THROTTLED else policy.deadline_seconds
    ceiling = min(policy.max_delay_seconds, policy.first_delay_seconds * 2.0 ** min(asked.attempts - 1, 30))
    delay = uniform() * ceiling
    if max(asked.elapsed_seconds, asked.silent_seconds) + delay >= limit_seconds:
        return GiveUp()
    return RetryAfter(delay)
