"""Who goes on, and until when: pure functions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from flatout.errors import ConfigError
from flatout.sweeping.budget import parse_budget
from flatout.sweeping.drawing import draw
from flatout.sweeping.halving import JobOutcome, keep, ranked, rung_epochs, survivors


def test_rungs_of_eight_configurations() -> None:
    assert rung_epochs(16, 8, 2) == (2, 4, 8, 16)
    assert rung_epochs(2, 8, 2) == (1, 2)  # too short for four cuts


@given(some.integers(1, 200), some.integers(1, 100), some.integers(2, 5))
def test_rungs_ascend_to_the_end(epochs: int, count: int, eta: int) -> None:
    rungs = rung_epochs(epochs, count, eta)
    assert list(rungs) == sorted(set(rungs))
    assert (rungs[0] >= 1, rungs[-1]) == (True, epochs)


@given(some.lists(some.one_of(some.none(), some.floats(allow_nan=True)), min_size=1, max_size=30), some.booleans())
def test_who_goes_on_is_never_worse_than_who_does_not(values: list[float | None], higher: bool) -> None:
    outcomes = [JobOutcome(at, value) for at, value in enumerate(values)]
    going = survivors(outcomes, 2, higher)
    assert len(going) <= keep(len(values), 2)
    finite = {at: value for at, value in enumerate(values) if value is not None and math.isfinite(value)}
    assert set(going) <= finite.keys()
    for stays in finite.keys() - set(going):
        for goes in going:
            assert finite[goes] >= finite[stays] if higher else finite[goes] <= finite[stays]


def test_equal_values_go_by_their_order_and_failures_are_last() -> None:
    outcomes = [JobOutcome(0, None, "lost"), JobOutcome(2, 0.5), JobOutcome(1, 0.5), JobOutcome(3, 0.9)]
    assert [each.configuration for each in ranked(outcomes, True)] == [3, 1, 2, 0]
    assert survivors([JobOutcome(0, None, "lost")], 2, True) == []


def test_a_seed_draws_different_combinations_and_the_same_again() -> None:
    over = {"a": [1, 2, 3], "b": [4, 5, 6, 7]}
    assert draw(over, 12, 0) == [{"a": a, "b": b} for a in over["a"] for b in over["b"]]
    some_of = draw(over, 5, seed=3)
    assert some_of == draw(over, 5, seed=3) != draw(over, 5, seed=4)
    assert len({tuple(each.items()) for each in some_of}) == 5


@pytest.mark.parametrize(
    ("text", "seconds", "usd"), [("30min", 1800, None), ("2h", 7200, None), ("$5", None, 5), ("1.5 usd", None, 1.5)]
)
def test_budgets(text: str, seconds: float | None, usd: float | None) -> None:
    assert (parse_budget(text).seconds, parse_budget(text).usd) == (seconds, usd)


@pytest.mark.parametrize("text", ["", "0min", "-5usd", "soon", "30"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a time or a sum"):
        parse_budget(text)
