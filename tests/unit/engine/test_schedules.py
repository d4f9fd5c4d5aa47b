"""Learning rates: bounded, continuous, ending where they say, whatever the number of steps."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.schema import TrainConfig
from flatout.engine.schedules import SCHEDULES, describe, learning_rate

schedules = st.sampled_from(SCHEDULES)
peaks = st.floats(1e-6, 10.0)
totals = st.integers(0, 2000)
unhurried = settings(deadline=None)  # a noisy machine must not fail a pure function
CLASSIC = [1 / 3, 2 / 3, 8 / 9]  # epochs 30, 60 and 80 of 90: the classic ImageNet recipe
TRAIN = {name: TrainConfig(schedule=name, milestones=CLASSIC) for name in SCHEDULES}
ENDS_NEAR_ZERO = ("cosine", "linear", "one-cycle")


@unhurried
@given(schedules, st.integers(0, 2500), totals, peaks, st.integers(0, 2500))
def test_rates_are_finite_and_between_zero_and_the_peak(
    schedule: str, step: int, total: int, peak: float, warmup: int
) -> None:
    rate = learning_rate(TRAIN[schedule], step, total, peak, warmup)
    assert math.isfinite(rate)
    assert 0 <= rate <= peak * (1 + 1e-12)


@unhurried
@given(schedules, st.integers(1, 2000), peaks, st.integers(0, 2000))
def test_every_step_of_a_run_moves_the_weights(schedule: str, total: int, peak: float, warmup: int) -> None:
    for step in (0, total // 2, total - 1):
        assert learning_rate(TRAIN[schedule], step, total, peak, warmup) > 0


@unhurried
@given(schedules, st.integers(1, 500), peaks, st.integers(500, 2000))
def test_warm_up_rises_to_the_peak_without_a_jump(schedule: str, warmup: int, peak: float, rest: int) -> None:
    total = warmup * 2 + rest * 10
    rates = [learning_rate(TRAIN[schedule], step, total, peak, warmup) for step in range(warmup + 2)]
    assert rates[:-1] == sorted(rates[:-1])
    assert rates[warmup] == pytest.approx(peak)
    largest_rise = peak * (math.pi / 2 / warmup if schedule == "one-cycle" else 1 / (warmup + 1))
    assert rates[warmup] - rates[warmup - 1] <= largest_rise * 1.0001
    assert rates[warmup + 1] >= 0.7 * peak  # inverse-sqrt after one warm-up step falls fastest


@unhurried
@given(schedules, st.integers(1, 300), peaks, st.integers(0, 100))
def test_after_the_warm_up_rates_never_rise(schedule: str, total: int, peak: float, warmup: int) -> None:
    start = warmup or (int(0.3 * total) if schedule == "one-cycle" else 0)
    rates = [learning_rate(TRAIN[schedule], step, total, peak, warmup) for step in range(start, total + 2)]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(rates))


@unhurried
@given(st.sampled_from(ENDS_NEAR_ZERO), st.integers(1, 2000), peaks, st.data())
def test_decays_end_near_zero(schedule: str, total: int, peak: float, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, total - 1))
    assert learning_rate(TRAIN[schedule], total, total, peak, warmup) <= peak * 1e-5


def test_known_values() -> None:
    assert [learning_rate(TRAIN["cosine"], s, 13, 1.0, 3) for s in (0, 1, 2, 3)] == [0.25, 0.5, 0.75, 1.0]
    assert learning_rate(TRAIN["cosine"], 8, 13, 1.0, 3) == pytest.approx(0.5)
    assert learning_rate(TRAIN["linear"], 25, 100, 2.0) == pytest.approx(1.5)
    assert learning_rate(TRAIN["constant"], 99, 100, 2.0) == 2.0
    assert learning_rate(TRAIN["inverse-sqrt"], 399, 1000, 1.0, 99) == pytest.approx(0.5)
    assert learning_rate(TRAIN["one-cycle"], 0, 100, 1.0) == pytest.approx(0.04)
    assert learning_rate(TRAIN["one-cycle"], 30, 100, 1.0) == 1.0


def test_step_falls_at_each_milestone() -> None:
    rates = [learning_rate(TRAIN["step"], step, 90, 1.0) for step in (29, 30, 59, 60, 79, 80)]
    assert rates == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert learning_rate(TrainConfig(schedule="step", milestones=[0.5], gamma=0.2), 50, 100, 1.0) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("cosine", 869, 0.5, 79), "cosine from 0.5 to 0 over 790 steps after 79 warm-up steps"),
        (("linear", 100, 0.1), "linear from 0.1 to 0 over 100 steps"),
        (("constant", 100, 0.1, 10), "constant at 0.1 for 90 steps after 10 warm-up steps"),
        (("step", 90, 0.1), "step from 0.1, times 0.1 at steps 30 and 60 and 80 of 90"),
        (("inverse-sqrt", 399, 1.0, 99), "inverse-sqrt from 1 to 0.5 over 300 steps after 99 warm-up steps"),
        (("one-cycle", 100, 1.0), "one-cycle from 0.04 to 1 over 30 steps, then to 4e-06 over 70 steps"),
    ],
)
def test_descriptions(arguments: tuple[str, int, float], sentence: str) -> None:
    assert describe(TRAIN[arguments[0]], *arguments[1:]) == sentence


@unhurried
@given(schedules, totals, peaks, st.integers(0, 2500))
def test_every_schedule_describes_itself(schedule: str, total: int, peak: float, warmup: int) -> None:
    assert describe(TRAIN[schedule], total, peak, warmup).startswith(schedule)
