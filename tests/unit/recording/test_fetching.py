"""What preparing a batch took, by stage."""

import time

import pytest

from flatout.recording.fetching import BatchClock, split_stages, timed_collate
from flatout.timeline.core_wait import CoreWait


def test_stages_add_up_and_blocked_time_is_fetching() -> None:
    stages = split_stages(wall=1.0, ran=0.4, waited=0.1, decoded=0.2, collated=0.1)
    assert sum(stages.values()) == pytest.approx(1.0)
    assert stages["fetch"] == pytest.approx(0.9 * 0.5 / 0.8)  # blocked 0.5, computed 0.3, and waited for a core
    assert stages["decode"] == pytest.approx((0.9 - stages["fetch"]) * 0.5)  # half of what ran was in a decoder
    assert split_stages(1.0, 0.0, 0.0, 0.0, 0.0) == {"fetch": 1.0, "decode": 0.0, "augment": 0.0, "collate": 0.0}


def test_waiting_for_a_core_is_no_fetching() -> None:
    assert split_stages(wall=1.0, ran=0.2, waited=0.8, decoded=0.0, collated=0.0)["fetch"] == 0.0


def test_a_sleep_is_fetching_and_a_loop_is_not() -> None:
    clock = BatchClock()
    _, times, _ = clock.measure(lambda: time.sleep(0.05))
    slept = split_stages(*times)
    assert slept["fetch"] > slept["augment"]

    def spin() -> str:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return "batch"

    batch, times, _ = clock.measure(spin)
    spun = split_stages(*times)
    assert (batch, spun["augment"] > spun["fetch"]) == ("batch", True)


def test_a_loop_of_two_milliseconds_is_no_fetching_although_the_kernel_counts_in_steps_of_four() -> None:
    def spin() -> None:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass

    clock, fetched, augmented = BatchClock(), 0.0, 0.0
    for _ in range(50):
        stages = split_stages(*clock.measure(spin)[1])
        fetched, augmented = fetched + stages["fetch"], augmented + stages["augment"]
    assert augmented > 4 * fetched


def test_batches_that_are_ready_at_once_are_split_as_the_last_one_that_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, wall, ran = BatchClock(), [0.0], [0.0]

    def fetch(seconds: float) -> None:  # a quarter of which computes
        wall[0] += seconds
        ran[0] += seconds / 4

    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "thread_time", lambda: ran[0])
    monkeypatch.setattr(CoreWait, "seconds", lambda self: 0.0)
    for seconds in (0.0002, 0.0004, 0.0001, 0.5):
        stages = split_stages(*clock.measure(fetch, seconds)[1])
        assert (stages["fetch"], stages["augment"]) == pytest.approx((0.75 * seconds, 0.25 * seconds))


def test_collating_is_measured_apart_and_gives_what_it_gives() -> None:
    assert timed_collate(sum)([1, 2]) == 3
