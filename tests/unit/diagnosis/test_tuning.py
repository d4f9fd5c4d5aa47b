"""Which settings tune measures, and which it takes."""

from dataclasses import replace

import pytest
from test_what_if import JOB

from flatout.diagnosis.tuning import (
    Trial,
    WholeRun,
    batch_sizes,
    best,
    claimed_gain,
    grid,
    plain_settings,
    promising,
    rescues,
    run_samples_per_second,
    scaled_lr,
    undecided,
    worker_counts,
)


def test_the_model_puts_the_fast_settings_first() -> None:
    settings = grid({"data.batch_size": [32, 64, 128], "data.workers": [0, 1, 4, 8]})
    first = promising(JOB, settings, 3)
    assert all(setting["data.workers"] >= 4 for setting in first)
    assert first[0]["data.batch_size"] == 128


def test_best_is_the_fastest_that_fits() -> None:
    full = Trial({"data.workers": 4}, (200.0,), memory_share=0.97)
    died = Trial({"data.workers": 3}, failed="out of memory")
    good = Trial({"data.workers": 2}, (150.0, 149.0))
    slow = Trial({"data.workers": 1}, (90.0,))
    assert best([full, died, good, slow]) is good


def test_of_equals_the_thrifty_one() -> None:
    many = Trial({"data.workers": 8}, (100.0,))
    few = Trial({"data.workers": 2}, (99.5,))
    starved = Trial({"data.workers": 1}, (99.9,), wait_share=0.3)
    assert best([many, few, starved]) is few


def test_nothing_usable_is_nothing() -> None:
    assert best([Trial({}, failed="out of memory")]) is None


def test_axes() -> None:
    assert batch_sizes(64, 10_000) == [32, 64, 128, 256, 512]
    assert batch_sizes(64, 700) == [32, 64]
    assert worker_counts(2) == [0, 1, 2]
    assert worker_counts(16) == [0, 1, 8, 15, 16]


def test_learning_rate_goes_with_the_batch() -> None:
    assert scaled_lr(0.1, "sgd", 64, 256) == 0.4
    assert scaled_lr(0.001, "adamw", 64, 256) == 0.002


def test_what_ran_out_of_memory_is_tried_with_less_of_it() -> None:
    axes = {"train.checkpointing": [False, True], "train.accumulate": [1, 2]}
    given = {"data.batch_size": 512, "train.checkpointing": False, "train.accumulate": 1}
    died = Trial(given, failed="out of memory: 16 GiB")
    assert rescues([Trial(given, (10.0,))], axes) == []
    assert rescues([died], axes) == [{**given, "train.checkpointing": True}, {**given, "train.accumulate": 2}]
    assert rescues([died], {}) == [], "a device without these"


def test_rounds_go_on_only_between_those_that_noise_hides() -> None:
    leader = Trial({"data.workers": 2}, (100.0, 120.0, 110.0))
    rival = Trial({"data.workers": 1}, (112.0, 108.0, 106.0))
    slower = Trial({"data.workers": 0}, (80.0, 95.0, 88.0))
    as_fast = Trial({"data.workers": 2}, (99.8, 119.5, 110.2))
    assert undecided([slower, rival, leader]) == [leader, rival]
    assert undecided([slower, leader]) == [], "slower in every round, however noisy the rounds are"
    assert undecided([leader, as_fast]) == [], "the same, to within a hundredth: no more rounds are needed to know it"
    assert undecided([leader, Trial({}, failed="out of memory")]) == []
    assert undecided([]) == []


def test_a_whole_run_pays_for_its_cold_epoch() -> None:
    job = WholeRun(samples_per_epoch=640, epochs=4)
    assert run_samples_per_second(job, 64, cold_step=1.0, warm_step=0.1) == pytest.approx(4 * 640 / (10 + 3))
    once = replace(job, epochs=1)
    assert run_samples_per_second(once, 64, 1.0, 0.1) == pytest.approx(64), "a cache that nothing reads"
    assert run_samples_per_second(replace(job, max_steps=5), 64, 1.0, 0.1) == pytest.approx(64)


def test_a_claim_is_of_the_whole_run_and_as_sure_as_its_rounds() -> None:
    given = Trial({"data.workers": 0}, (100.0, 50.0, 100.0), other_seconds=10.0)
    steady = Trial({"data.workers": 2}, (200.0, 100.0, 200.0), other_seconds=10.0)
    claim = claimed_gain(given, steady, samples=1000)
    assert claim.value == pytest.approx(20 / 15), "the start is not faster; the steps are, twice"
    assert claim.low < claim.value < claim.high
    noisy = replace(steady, samples_per_second=(200.0, 100.0, 110.0))
    assert claimed_gain(given, noisy, 1000).low < claim.low
    same = claimed_gain(given, replace(given), 1000)
    assert (same.low < 1 < same.high, same.value) == (True, 1.0)


def test_what_anybody_would_try_first_is_tried() -> None:
    current = {"data.batch_size": 32, "data.workers": 1, "data.cache": "auto"}
    plain = plain_settings(current, {"data.cache": ["auto", "off"]}, cores=2)
    assert {**current, "data.workers": 2, "data.cache": "off"} in plain
    assert current not in plain
    assert plain_settings({"data.workers": 2}, {}, cores=2) == []
