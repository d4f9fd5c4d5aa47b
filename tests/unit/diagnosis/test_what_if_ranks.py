"""Ranks, parts of batches and memory: everything follows from one model."""

from dataclasses import replace

import pytest
from constructed import changed, signals, steps
from test_what_if import JOB, OWN

from flatout.diagnosis.calibration import Settings, calibrate
from flatout.diagnosis.what_if import predict, with_residual
from flatout.errors import ConfigError

FED = replace(JOB, settings=replace(JOB.settings, workers=8), cores=16, parameter_bytes=4e6)


def test_more_ranks_have_fewer_steps_of_the_same_batch_each() -> None:
    alone, four = predict(FED, {}), predict(FED, {"ranks": 4})
    assert four.samples_per_second.value == pytest.approx(4 * 64 / four.step.value)
    assert four.epoch.value == pytest.approx(alone.epoch.value / 4 * four.step.value / alone.step.value)
    assert four.run.value < alone.run.value
    assert four.usd is not None
    assert alone.usd is not None
    assert four.usd.value / alone.usd.value == pytest.approx(four.run.value / alone.run.value)
    assert predict(FED, {"parallel.devices": 4}).run == four.run


def test_ranks_on_saturated_cores_gain_nothing() -> None:
    """Two cores that are busy with one rank's work already."""
    busy = replace(JOB, device_kind="cpu", threads=2, cores=2, step_extra_seconds=0.0, decode_seconds=0.0,
                   augment_seconds=0.0, fetch_seconds=0.0)  # fmt: skip
    alone, two = predict(busy, {}), predict(busy, {"ranks": 2})
    assert two.samples_per_second.value <= 1.02 * alone.samples_per_second.value
    assert two.limit == "cores"
    spread = predict(replace(busy, threads_open=True), {"ranks": 2})
    assert spread.samples_per_second.value < 1.3 * alone.samples_per_second.value


def test_ranks_share_the_cores_that_decode() -> None:
    starved = replace(JOB, cores=2, settings=replace(JOB.settings, workers=2))
    alone, two = predict(starved, {}), predict(starved, {"ranks": 2})
    assert two.samples_per_second.value == pytest.approx(alone.samples_per_second.value, rel=0.1)


def test_time_that_a_thread_waited_for_a_core_is_not_taken_from_others() -> None:
    """Beside a busy neighbour: of 80 ms besides forward and backward, the loop computed 2."""
    waited = tuple(step._replace(cpu_seconds=0.002) for step in steps(own=0.1))
    parts = {"forward": 0.01 * len(waited), "backward": 0.01 * len(waited), "optimizer": 0.08 * len(waited)}
    light = {"decode_seconds": 0.0, "augment_seconds": 0.0, "cores": 1}
    job = calibrate(signals(steps=waited, parts=parts, **light), Settings(batch_size=64, workers=1, epochs=4))
    assert job.host_seconds == pytest.approx(0.002)
    assert predict(job, {"ranks": 2}).samples_per_second.value > 1.5 * predict(job, {}).samples_per_second.value


def test_fewer_ranks_are_not_faster_where_each_has_a_core() -> None:
    two = replace(FED, world_size=2, ranks_here=2, communication_seconds=0.004)
    assert predict(two, {"ranks": 1}).samples_per_second.value < predict(two, {}).samples_per_second.value


def test_a_global_batch_is_cut_into_smaller_parts() -> None:
    assert predict(replace(FED, batch_is_global=True), {"ranks": 2}).step.value < OWN


def test_an_exchange_of_much_is_the_limit() -> None:
    told = predict(replace(FED, parameter_bytes=400e6), {"ranks": 2})
    assert (told.limit, told.step.value > 0.3) == ("exchange", True)


@pytest.mark.parametrize("ranks", [0, -1, "many", True, 10**6])
def test_ranks_that_cannot_be_are_one_line(ranks: object) -> None:
    with pytest.raises(ConfigError, match="give a number of ranks"):
        predict(FED, {"ranks": ranks})


def test_two_ranks_of_a_run_load_half_of_each_batch() -> None:
    """steps.csv has the global batch; a rank's spans have its part."""
    made = steps(own=0.1)
    two = changed(signals(steps=made, decode_seconds=0.2 * len(made)), "input", loads=())
    settings = Settings(batch_size=32, workers=4, epochs=4)
    one = calibrate(two, settings)
    half = calibrate(replace(two, ranks=_two_ranks()), settings)
    assert half.decode_seconds == pytest.approx(2 * one.decode_seconds)
    assert half.samples_per_epoch == one.samples_per_epoch


def _two_ranks():
    from flatout.diagnosis.signal_groups import RankSignals

    return RankSignals(2, communication_seconds=0.0)


def test_parts_of_a_batch_are_not_free() -> None:
    cpu = calibrate(signals(device_kind="cpu", steps=steps(own=0.1)), Settings(batch_size=64, workers=4, epochs=4))
    plain, parts = predict(cpu, {}), predict(cpu, {"train.accumulate": 4})
    assert parts.step.value > 1.1 * plain.step.value


def test_a_run_is_reproduced_to_the_second() -> None:
    """With gaps between epochs, a cold one, validations and time that nothing explains."""
    made = steps(own=0.1, wait=0.05, first_epoch_wait=0.3, gap=1.0)
    run = signals(steps=made, parts={"validation": 4.0, "checkpoint": 2.0, "unattributed": 3.0})
    settings = Settings(batch_size=64, workers=4, epochs=4)
    job = with_residual(calibrate(run, settings), run.step.seconds)
    told = predict(job, {})
    assert told.run.value == pytest.approx(run.time.wall_seconds)
    assert told.step.value == pytest.approx(run.step.seconds)


def test_loading_is_no_limit_where_nothing_waits() -> None:
    """One batch after the other is ready just in time."""
    close = replace(JOB, settings=replace(JOB.settings, workers=3))
    assert predict(close, {}).step.value > OWN
    assert predict(close, {}).limit == "compute"


def test_memory_goes_with_the_part_of_a_batch_and_with_checkpointing() -> None:
    job = replace(JOB, memory_bytes=10e9, parameter_bytes=0.5e9, state_copies=1)
    plain, twice, parts, recomputed = (
        predict(job, changes).memory
        for changes in ({}, {"data.batch_size": 128}, {"train.accumulate": 2}, {"train.checkpointing": True})
    )
    assert plain is not None
    assert plain.value == pytest.approx(10e9)
    assert twice is not None
    assert twice.value == pytest.approx(1.5e9 + 2 * 8.5e9)
    assert parts is not None
    assert parts.value == pytest.approx(1.5e9 + 8.5e9 / 2)
    assert recomputed is not None
    assert 1.5e9 < recomputed.value < 0.6 * plain.value
    assert recomputed.high - recomputed.low > plain.high - plain.low
