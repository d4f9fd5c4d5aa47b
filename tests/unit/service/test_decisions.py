"""What a job does about a batch it needs, whatever a service answers."""

import pytest

from flatout.service.client.decisions import (
    MOST_ASKS,
    PATIENCE_SECONDS,
    AskFor,
    AskHistory,
    ComputeLocally,
    Take,
    mean_step,
    next_action,
    rejoin_backoff_seconds,
)
from flatout.service.coordinator.policy import (
    BATCHES_PER_ANSWER,
    SMALL_BATCH_FACTOR,
    Allowance,
    lookahead,
    max_batches_per_answer,
    reuse_score,
)
from flatout.service.protocol.messages import Batches

READY = Batches(buffers=[1])


def test_what_is_ready_is_taken_and_what_is_denied_is_made() -> None:
    assert next_action(AskHistory(1, 0.1), READY) == Take()
    assert next_action(AskHistory(1, 0.1), Batches(denied="no producer")) == ComputeLocally("no producer")


@pytest.mark.parametrize("seconds_per_ask", [0.0, 0.3, 100.0])
def test_no_answer_keeps_a_job_asking_for_ever(seconds_per_ask: float) -> None:
    times, seconds = 0, 0.0
    action = next_action(AskHistory(0, 0.0), None)
    while isinstance(action, AskFor):
        assert 0 < action.wait_seconds <= PATIENCE_SECONDS - seconds
        times, seconds = times + 1, seconds + seconds_per_ask
        assert times <= MOST_ASKS
        action = next_action(AskHistory(times, seconds), Batches())
    assert isinstance(action, ComputeLocally)


def test_tries_to_rejoin_become_rare_but_never_end() -> None:
    assert [rejoin_backoff_seconds(failures) for failures in (1, 2, 3, 7, 50)] == [1, 2, 4, 60, 60]


def test_a_pause_does_not_make_a_job_slow_but_slow_steps_do() -> None:
    mean: float | None = None
    for seconds in (0.1, 0.1, 300.0, 0.1, 0.1, 0.1):  # a validation of five minutes
        mean = mean_step(mean, seconds)
    assert mean == pytest.approx(0.13, abs=0.01)
    for _ in range(12):
        mean = mean_step(mean, 2.0)
    assert mean == pytest.approx(2.0, rel=0.2)
    assert mean_step(mean_step(0.0, 60.0), 0.0) < 0.001  # one that is limited by its data still is


def test_lookahead_covers_what_a_job_reads_while_one_batch_is_made() -> None:
    assert lookahead(16, None, 1.0, 0.0) == 16
    assert lookahead(16, 1.0, 0.1, 0.0) == 10
    assert lookahead(16, 1.0, 0.01, 0.0) == lookahead(16, 0.0, 0.01, 0.0) == 64  # made in no time: two handfuls
    assert lookahead(32, 0.5, 1.0, 2.0) == 21
    assert lookahead(16, 0.001, 1.0, 0.0) == 16
    assert lookahead(16, 1e-310, 1.0, 0.0) == 16


def test_a_handful_leaves_room_for_others() -> None:
    assert (
        max_batches_per_answer(4 << 30, 3 << 20, 4, 0.1)
        == max_batches_per_answer(4 << 30, 3 << 20, 4, None)
        == BATCHES_PER_ANSWER
    )
    assert max_batches_per_answer(4 << 30, 3 << 20, 4, 0.01) == SMALL_BATCH_FACTOR * BATCHES_PER_ANSWER
    assert max_batches_per_answer(300 << 20, 38 << 20, 4, 0.1) == 1
    assert max_batches_per_answer(1600, 100, 1, 0.01) == 4
    assert max_batches_per_answer(1600, 100, 2, 0.01) == 2


def test_what_is_needed_sooner_and_by_more_jobs_is_worth_more() -> None:
    assert reuse_score([]) == 0
    assert reuse_score([10.0]) < reuse_score([1.0]) < reuse_score([1.0, 10.0])


def test_a_cost_cap_lets_through_what_it_allows_on_average() -> None:
    allowance = Allowance(3.6)  # a tenth of a cent each second
    spent, now = 0.0, 0.0
    while now < 3600:
        now += 0.5
        if allowance.allows(now):
            allowance.spend(0.01)
            spent += 0.01
    assert 3.6 <= spent <= 3.6 * 1.1 + 0.01
    assert Allowance(None).allows(0.0)
