"""Predictions from a calibration whose truth is known."""

from dataclasses import replace

import pytest
from constructed import signals, steps

from flatout.diagnosis.calibration import Calibration, Settings, calibrate
from flatout.diagnosis.model.device import DeviceTime
from flatout.diagnosis.what_if import predict, staging_break_even, with_residual
from flatout.errors import BadFile, ConfigError, RunDirectoryError

JOB = Calibration(
    settings=Settings(batch_size=64, workers=1, epochs=10),
    device=DeviceTime(0.010, 0.001),
    device_kind="cuda",
    cores=8,
    threads=1,
    step_extra_seconds=0.006,
    between_seconds=0.0,
    fetch_seconds=0.0001,
    decode_seconds=0.003,
    augment_seconds=0.0009,
    bytes_per_sample=100e3,
    remote=False,
    fetchers=0,
    samples_per_epoch=6400,
    startup_seconds=5.0,
    validation_seconds=2.0,
    checkpoint_seconds=1.0,
    step_error=0.03,
    contention=0.0,
    usd_per_hour=3.6,
    measured_workers=1,
)
OWN, LOAD = 0.010 + 0.064 + 0.006, 64 * 0.004


def test_one_worker_is_the_limit() -> None:
    prediction = predict(JOB, {})
    assert prediction.step.value == pytest.approx(LOAD)
    assert prediction.limit == "loading"


def test_workers_help_until_the_device_is_the_limit() -> None:
    assert predict(JOB, {"data.workers": 2}).step.value == pytest.approx(LOAD / 2)
    enough = predict(JOB, {"data.workers": 6})
    assert (enough.step.value, enough.limit) == (pytest.approx(OWN), "compute")


def test_without_workers_nothing_overlaps() -> None:
    assert predict(JOB, {"data.workers": 0}).step.value == pytest.approx(OWN + LOAD)


def test_cores_that_are_in_each_others_way_gain_less() -> None:
    crowded = replace(JOB, contention=0.4)
    assert predict(crowded, {"data.workers": 2}).step.value > predict(JOB, {"data.workers": 2}).step.value


def test_run_and_cost_add_up() -> None:
    prediction = predict(JOB, {"data.workers": 6, "validate.every_epochs": 5})
    expected = 5.0 + 10 * 100 * OWN + 2 * 2.0 + 10 * 1.0
    assert prediction.run.value == pytest.approx(expected)
    assert prediction.usd is not None
    assert prediction.usd.value == pytest.approx(expected * 3.6 / 3600)


def test_a_cache_makes_all_but_the_first_epoch_faster() -> None:
    cached = predict(JOB, {"data.cache": "memory"})
    assert cached.step.value == pytest.approx(OWN)
    assert cached.run.value > 5.0 + 10 * 100 * OWN + 20 + 10  # the first epoch still decodes


def test_a_slow_store_caps_the_rate() -> None:
    capped = predict(JOB, {"data.workers": 8, "storage.bandwidth": "80 Mbps"})
    assert capped.step.value == pytest.approx(64 * 100e3 / 10e6)
    assert capped.limit == "storage"


def test_a_slower_link_exposes_communication() -> None:
    ranks = replace(JOB, world_size=4, gradient_bytes=100e6, settings=replace(JOB.settings, workers=8))
    slow, fast = predict(ranks, {"link": "100 Mbps"}), predict(ranks, {"link": "100 Gbps"})
    assert slow.step.value == pytest.approx(1.5 * 100e6 / 12.5e6, rel=0.02)
    assert fast.step.value == pytest.approx(OWN, rel=0.1)


def test_checkpointing_computes_the_forward_pass_again() -> None:
    plain = replace(JOB, settings=replace(JOB.settings, workers=8))
    assert predict(plain, {"train.checkpointing": True}).step.value == pytest.approx(0.074 * 4 / 3 + 0.006)


def test_less_is_promised_of_what_was_never_seen() -> None:
    def width(changes: dict[str, object]) -> float:
        step = predict(JOB, changes).step
        return (step.high - step.low) / step.value

    assert width({}) < width({"data.workers": 2}) < width({"data.workers": 2, "data.batch_size": 256})


def test_a_key_the_model_knows_nothing_of_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no prediction for model\.width"):
        predict(JOB, {"model.width": 2})


def test_a_calibration_survives_its_file() -> None:
    assert Calibration.from_dict(JOB.to_dict()) == JOB


@pytest.mark.parametrize(
    "change",
    [
        {"settings": 1.5}, {"device": None}, {"cores": "many"}, {"buckets": [1]}, {"world_size": 0}, {"threads": -1},
        {"samples_per_epoch": 0}, {"decode_seconds": "nan"}, {"settings": {"batch_size": 0, "workers": 1, "epochs": 1}},
    ],
)  # fmt: skip
def test_a_damaged_calibration_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadFile):
        Calibration.from_dict({**JOB.to_dict(), **change})


def test_a_run_predicts_itself() -> None:
    """Of a run that waits for one worker: what the model says of no change is what was measured."""
    starved = signals(workers=1, steps=steps(own=0.1, wait=0.16), threads=1)
    job = calibrate(starved, Settings(batch_size=64, workers=1, epochs=4))
    assert predict(job, {}).step.value == pytest.approx(0.26, rel=0.02)


def test_what_the_model_missed_it_will_miss_again() -> None:
    slower = with_residual(JOB, 1.2 * LOAD)
    assert predict(slower, {}).step.value == pytest.approx(1.2 * LOAD)
    assert predict(slower, {"data.workers": 2}).step.value == pytest.approx(1.2 * LOAD / 2)
    assert predict(slower, {"data.workers": 8}).step.value == pytest.approx(OWN), "another limit, another error"


def test_a_model_of_damaged_figures_is_not_corrected() -> None:
    assert with_residual(replace(JOB, between_seconds=float("inf"), step_extra_seconds=float("inf")), 1.0).residual == 1
    assert with_residual(replace(JOB, decode_seconds=1e308), 1.0).residual >= 0


def test_few_batches_ahead_bound_the_workers() -> None:
    assert predict(JOB, {"data.workers": 8, "data.prefetch": 2}).step.value == pytest.approx(LOAD / 2)
    assert predict(JOB, {"data.workers": 8, "data.prefetch": "auto"}).step.value == pytest.approx(OWN)


def test_staging_while_training_pays_from_the_second_epoch_on() -> None:
    remote = replace(JOB, remote=True, fetchers=4, fetch_seconds=0.05, settings=replace(JOB.settings, workers=8))
    assert staging_break_even(remote, {"data.stage": "auto"}) == 2
    assert staging_break_even(JOB, {"data.stage": "auto"}) is None, "local data needs no copy"


def test_less_is_promised_from_a_busy_machine() -> None:
    settings = Settings(batch_size=64, workers=1, epochs=4)
    quiet = calibrate(signals(cpu_share=(0.5,), process_cores=(4.0,)), settings)
    busy = calibrate(signals(cpu_share=(1.0,), process_cores=(4.0,)), settings)
    assert busy.step_error > quiet.step_error
    assert busy.cores < quiet.cores


def test_the_latency_of_a_store_changes_and_the_work_on_a_request_stays() -> None:
    remote = replace(JOB, remote=True, fetchers=1, fetch_seconds=0.050, request_seconds=0.050,
                     store_latency_seconds=0.040)  # fmt: skip
    quicker, slower = (predict(remote, {"storage.latency": each}).step.value for each in ("20 ms", "140 ms"))
    assert (quicker, slower) == (pytest.approx(64 * 0.030), pytest.approx(64 * 0.150))


def test_a_loop_that_fetchers_disturb_is_quicker_without_them() -> None:
    disturbed = tuple(step._replace(step_seconds=step.seconds + 0.04, cpu_seconds=0.02) for step in steps(own=0.1))
    parts = {"forward": 0.03 * len(disturbed), "backward": 0.05 * len(disturbed), "optimizer": 0.06 * len(disturbed)}
    settings = Settings(batch_size=64, workers=8, epochs=4)
    remote, local = (
        calibrate(signals(steps=disturbed, parts=parts, fetchers=fetchers, remote=fetchers > 0), settings)
        for fetchers in (4, 0)
    )
    assert predict(remote, {}).step.value == pytest.approx(0.14, rel=0.05)
    for change in ({"data.stage": "auto"}, {"data.cache": "memory"}):
        assert predict(remote, change).step.value == pytest.approx(0.08 + 0.02)
        assert predict(local, change).step.value == pytest.approx(0.14, rel=0.05), "nothing goes away"


def test_batches_of_text_are_cut_by_tokens() -> None:
    text = replace(JOB, batch_tokens=4096)
    assert predict(text, {"data.batch_tokens": 8192}).step.value == pytest.approx(2 * LOAD)
    with pytest.raises(ConfigError, match=r"cut by data\.batch_tokens"):
        predict(text, {"data.batch_size": 128})
    with pytest.raises(ConfigError, match=r"cut by data\.batch_size"):
        predict(JOB, {"data.batch_tokens": 8192})


def test_steps_that_vary_by_more_than_themselves_have_an_interval_all_the_same() -> None:
    prediction = predict(replace(JOB, step_error=3.0), {})
    assert 0 < prediction.step.low < prediction.step.value
    assert prediction.samples_per_second.high < float("inf")


def test_steps_without_samples_calibrate_nothing() -> None:
    empty = tuple(step._replace(samples=0) for step in steps())
    with pytest.raises(RunDirectoryError, match="have no samples"):
        calibrate(signals(steps=empty), Settings(batch_size=64, workers=1, epochs=4))
