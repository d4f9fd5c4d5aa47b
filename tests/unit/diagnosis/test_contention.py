"""Who had the cores, and what that leaves of the parts; readings of curves that one run cannot tell apart."""

import pytest
from constructed import row, signals, steps

from flatout.analysis.rank_spans import BatchLoad
from flatout.diagnosis.contention import holders
from flatout.diagnosis.learning import BY_HEART, MISMATCH, RANDOM, curves_of, val_at_chance
from flatout.diagnosis.signal_groups import Epoch, HostRow, HostSignals
from flatout.diagnosis.verdict import explain_signals


def host(*rows: HostRow, **more: float) -> HostSignals:
    return HostSignals(cores=2, machine_cores=2, rows=rows, **more)  # type: ignore[arg-type]


def test_threads_that_wait_for_their_own_run_have_no_neighbour() -> None:
    found = holders(host(HostRow(10.0, 1.0, process_cores=2.0, waiting_cores=6.0)))
    assert (found.outside, found.own) == (0.0, 1.0)


def test_neighbours_had_no_more_than_they_used() -> None:
    found = holders(host(HostRow(10.0, 0.75, process_cores=1.0, waiting_cores=1.0)))
    assert found.neighbours == pytest.approx(0.5)


def test_above_a_quota_it_is_the_quota_and_below_it_the_neighbours() -> None:
    found = holders(
        host(HostRow(10.0, 1.0, process_cores=0.3, waiting_cores=0.7, throttled_cores=0.1), quota_cores=0.5)
    )
    assert found.quota == pytest.approx(0.5 / 0.7)
    assert found.neighbours == pytest.approx(0.2 / 0.7)


def test_stolen_time_is_the_hosts() -> None:
    found = holders(host(HostRow(10.0, 0.5, process_cores=1.0, waiting_cores=0.5, steal_share=0.5)))
    assert (found.host, found.neighbours) == (1.0, 0.0)


def test_a_starved_run_whose_workers_only_lack_cores_is_not_blamed_on_its_loading() -> None:
    """The shares add up, and what is left of waiting for data is less than what was waited."""
    taken = signals(
        workers=1, steps=steps(wait=0.1), core_wait={"data_wait": 20.0}, rows=(HostRow(40.0, 1.0, 4.0, 4.0),)
    )
    explained = explain_signals(taken)
    assert explained.cause == "host"
    assert sum(explained.shares.values()) == pytest.approx(1.0)
    assert taken.net("data_wait") == pytest.approx(0.0, abs=0.1)


def test_a_thread_that_loads_by_itself_waits_for_a_core_once() -> None:
    """Of each second that it prepares batches in it waits 0.6 for a core: 0.4 are its own work."""
    loads = tuple(BatchLoad(n, decode_seconds=0.1, core_wait_seconds=0.06) for n in range(1, 201))
    crowd = (HostRow(40.0, 1.0, 0.4, 0.6),)
    waited = {"data_wait": 0.6 * 200 * 0.1}
    inline = signals(workers=0, steps=steps(own=0.02, wait=0.1), loads=loads, core_wait=waited, rows=crowd)
    assert inline.net("data_wait") == pytest.approx(0.4 * 200 * 0.1)


def test_other_findings_name_who_has_the_cores_as_well() -> None:
    beside = signals(workers=1, steps=steps(wait=0.3), core_wait={"forward": 5.0}, rows=(HostRow(40.0, 1.0, 4.0, 4.0),))
    explained = explain_signals(beside)
    assert explained.cause == "data-workers"
    assert "waits for cores that other processes have" in explained.verdict


def test_a_neighbour_in_the_first_epoch_makes_no_cold_epoch() -> None:
    slow_first = tuple(row(n // 50, n % 50, 64, 0.3 if n < 50 else 0.1, 0.002) for n in range(200))
    crowded = signals(steps=slow_first)
    assert crowded.step.cold_ratio == pytest.approx(1.0)
    assert crowded.step.seconds == pytest.approx(0.15, rel=0.05)  # of the whole run, not of its later epochs


FIRST_EPOCH_FALLS = tuple(row(0, n, 64, 0.1, 0.0, loss=2.3 - 0.03 * n) for n in range(50))
FIRST_EPOCH_GUESSES = tuple(row(0, n, 64, 0.1, 0.0, loss=2.3) for n in range(50))


@pytest.mark.parametrize(
    ("top1", "course", "samples", "reading"),
    [
        (0.01, FIRST_EPOCH_FALLS, 3200, MISMATCH),
        (0.10, FIRST_EPOCH_GUESSES, 3200, RANDOM),
        (0.12, FIRST_EPOCH_GUESSES, 300, BY_HEART),
    ],
)
def test_readings_of_validation_at_chance(top1: float, course: tuple[object, ...], samples: int, reading: str) -> None:
    epochs = (Epoch(0, 2.3, 2.31, 0.1), Epoch(1, 1.0, 3.0, top1))
    curves = curves_of(signals(epochs=epochs, steps=course, train_samples=samples).learning, course)  # type: ignore[arg-type]
    assert curves is not None
    readings = val_at_chance(curves)
    assert readings[0].name == reading
    assert sum(each.probability for each in readings) == pytest.approx(1.0)


def test_no_steps_are_no_error() -> None:
    epochs = (Epoch(0, 2.3, 2.31, 0.1), Epoch(1, 1.0, 3.0, 0.1))
    curves = curves_of(signals(epochs=epochs).learning, ())
    assert curves is not None
    assert val_at_chance(curves)
