"""Intervals that are as wide as outcomes ask for, and never as narrow as nothing."""

import random
from dataclasses import replace

import pytest
from test_what_if import JOB, LOAD

from flatout.diagnosis.conformal import Outcome, bare_errors, interval_factors, quantile
from flatout.diagnosis.what_if import LEVEL, predict, with_residual


def outcomes(errors: list[float], bare: float = 0.1) -> list[Outcome]:
    return [Outcome("step", 1.0, 1.0 + error, bare) for error in errors]


def test_the_stated_share_of_outcomes_to_come_is_inside() -> None:
    """Whatever the model thought of itself: here it is four times too sure."""
    draw = random.Random(0)
    seen = outcomes([draw.gauss(0, 0.4) for _ in range(400)])
    factor = interval_factors(seen)["step"]
    inside = [abs(draw.gauss(0, 0.4)) <= factor * 0.1 for _ in range(4000)]
    assert sum(inside) / len(inside) == pytest.approx(LEVEL, abs=0.06)


def test_a_model_that_errs_less_than_it_said_is_believed() -> None:
    sure, unsure = (interval_factors(outcomes([error] * 30))["step"] for error in (0.02, 0.3))
    assert sure < 1 < unsure


def test_few_outcomes_do_not_outvote_what_came_with_the_release() -> None:
    assert interval_factors(outcomes([0.0001] * 5)) == interval_factors([]) == {"step": 1.0}


def test_of_too_few_the_largest_is_taken() -> None:
    assert quantile([0.5, 2.0]) == 2.0


def test_factors_widen_what_is_predicted() -> None:
    wide, narrow = (predict(replace(JOB, interval_factors={"step": each}), {}).step for each in (3.0, 1.0))
    assert wide.high - wide.low == pytest.approx(3 * (narrow.high - narrow.low))


def test_nothing_is_promised_closer_than_the_model_missed_its_own_run() -> None:
    """A probe that misses real steps by 57 % predicted with 5 %."""
    job = with_residual(replace(JOB, step_error=0.01), LOAD / 0.43)
    for changes in ({}, {"data.workers": 2}):
        step = predict(job, changes).step
        assert (step.high - step.low) / 2 / step.value >= 0.57


@pytest.mark.parametrize("changes", [{}, {"train.epochs": 1}, {"data.batch_size": 32}])
def test_no_interval_has_no_width(changes: dict[str, int]) -> None:
    exact = replace(JOB, step_error=0.0, memory_bytes=8e9, interval_factors=dict.fromkeys(("step", "run"), 0.0))
    told = predict(exact, changes)
    for interval in (told.step, told.samples_per_second, told.epoch, told.run, told.usd, told.memory):
        assert interval is not None
        assert interval.low < interval.value < interval.high


def test_predictions_of_older_versions_are_scored_by_the_interval_they_showed() -> None:
    shown = {"step": {"value": 2.0, "low": 1.8, "high": 2.2}, "run": None}
    assert bare_errors(shown) == {"step": pytest.approx(0.1)}
    assert bare_errors({**shown, "bare_errors": {"step": 0.05}}) == {"step": 0.05}
