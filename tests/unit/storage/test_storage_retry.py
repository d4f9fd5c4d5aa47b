from hypothesis import given
from hypothesis import strategies as st

from flatout.storage.retry import GiveUp, RequestHistory, RequestOutcome, RetryAfter, RetryPolicy, next_attempt

POLICY = RetryPolicy()
PASSING = [RequestOutcome.THROTTLED, RequestOutcome.UNREACHABLE, RequestOutcome.DAMAGED]
FINAL = [outcome for outcome in RequestOutcome if outcome not in [*PASSING, RequestOutcome.EXPIRED]]


def asked(
    attempts: int = 1, elapsed: float = 0.0, silent: float = 0.0, damaged: int = 0, refreshed: bool = False
) -> RequestHistory:
    return RequestHistory(attempts, elapsed, silent, damaged, refreshed)


@given(st.sampled_from(FINAL), st.integers(1, 100))
def test_an_answer_that_will_not_change_is_final(outcome: RequestOutcome, attempts: int) -> None:
    assert next_attempt(outcome, asked(attempts), POLICY, lambda: 0.5) == GiveUp()


@given(st.sampled_from(PASSING), st.integers(1, 10_000), st.floats(0, 0.999))
def test_the_delay_is_within_its_ceiling(outcome: RequestOutcome, attempts: int, draw: float) -> None:
    step = next_attempt(outcome, asked(attempts), POLICY, lambda: draw)
    assert isinstance(step, RetryAfter)
    assert 0 <= step.seconds <= min(POLICY.max_delay_seconds, POLICY.first_delay_seconds * 2.0 ** min(attempts - 1, 30))


def test_the_ceiling_doubles() -> None:
    steps = [next_attempt(RequestOutcome.THROTTLED, asked(attempt), POLICY, lambda: 1.0) for attempt in (1, 2, 3, 20)]
    assert steps == [RetryAfter(0.05), RetryAfter(0.1), RetryAfter(0.2), RetryAfter(5.0)]


@given(st.sampled_from(PASSING), st.floats(0, 500), st.floats(0, 500), st.floats(0, 0.999))
def test_nothing_is_asked_beyond_its_deadline(
    outcome: RequestOutcome, elapsed: float, silent: float, draw: float
) -> None:
    step = next_attempt(outcome, asked(5, elapsed, silent), POLICY, lambda: draw)
    limit = POLICY.throttle_seconds if outcome is RequestOutcome.THROTTLED else POLICY.deadline_seconds
    if isinstance(step, RetryAfter):
        assert max(elapsed, silent) + step.seconds < limit
    else:
        assert max(elapsed, silent) + POLICY.max_delay_seconds >= limit


def test_a_minute_of_slow_down_is_waited_out_but_a_minute_of_silence_is_not() -> None:
    late = asked(30, elapsed=65.0, silent=65.0)
    assert isinstance(next_attempt(RequestOutcome.THROTTLED, late, POLICY, lambda: 0.5), RetryAfter)
    assert next_attempt(RequestOutcome.UNREACHABLE, late, POLICY, lambda: 0.5) == GiveUp()


def test_a_late_object_of_a_silent_store_does_not_wait_all_over_again() -> None:
    fresh = asked(1, elapsed=0.1, silent=61.0)
    assert next_attempt(RequestOutcome.UNREACHABLE, fresh, POLICY, lambda: 0.5) == GiveUp()


def test_credentials_are_renewed_once() -> None:
    assert next_attempt(RequestOutcome.EXPIRED, asked(), POLICY, lambda: 0.5) == RetryAfter(
        0.0, refresh_credentials=True
    )
    assert next_attempt(RequestOutcome.EXPIRED, asked(refreshed=True), POLICY, lambda: 0.5) == GiveUp()


def test_an_object_that_is_always_damaged_is_given_up() -> None:
    assert isinstance(next_attempt(RequestOutcome.DAMAGED, asked(5, damaged=5), POLICY, lambda: 0.5), RetryAfter)
    assert next_attempt(RequestOutcome.DAMAGED, asked(6, damaged=6), POLICY, lambda: 0.5) == GiveUp()
