"""predict and plan give the same step for the same facts: they share one performance model."""

import pytest

from flatout.cost.machines import Machine
from flatout.diagnosis.calibration import Calibration, Settings
from flatout.diagnosis.changes import measured_job
from flatout.diagnosis.model.device import DeviceTime
from flatout.diagnosis.model.step import step_seconds
from flatout.diagnosis.step_model import modelled_step
from flatout.planning.data_path import Samples, feed_of

BATCH, CORES, READ_SECONDS = 64, 4.0, 0.0001


def predicted(decode_seconds: float, device: DeviceTime) -> tuple[float, str]:
    calibration = Calibration(
        settings=Settings(BATCH, workers=4, epochs=10), device=device, device_kind="emulated", cores=CORES, threads=1,
        step_extra_seconds=0.0, between_seconds=0.0, fetch_seconds=READ_SECONDS, decode_seconds=decode_seconds,
        augment_seconds=0.0, bytes_per_sample=1.0, remote=False, fetchers=0.0, samples_per_epoch=64_000,
        startup_seconds=0.0, validation_seconds=0.0, checkpoint_seconds=0.0, step_error=0.0, contention=0.0,
        measured_workers=4,
    )  # fmt: skip
    told = modelled_step(calibration, measured_job(calibration))
    return told.seconds, "device" if told.limit == "compute" else "decode"


def planned(decode_seconds: float, device: DeviceTime) -> tuple[float, str]:
    """On a machine of as many cores; the local disk answers in 0.1 ms."""
    samples = Samples(64_000, 0, 1.0, decode_seconds, 0.0, 0.0, "given", "nvme")
    machine = Machine("here", "own", "T4", 1, CORES, None, None, None, None, "nvme", "here", "n/a")
    feed = feed_of(samples, machine, BATCH, 10, cached=False)
    loading = BATCH / feed.per_second.value
    computing = device.step_seconds(BATCH)
    return step_seconds(computing, 0.0, loading), "device" if computing >= loading else feed.limit


@pytest.mark.parametrize("decode_seconds", [0.0002, 0.002, 0.02])
@pytest.mark.parametrize("per_sample", [0.0001, 0.001, 0.01])
def test_a_step_is_the_same_from_both(decode_seconds: float, per_sample: float) -> None:
    device = DeviceTime(0.002, per_sample)
    (seconds, limit), (as_planned, planned_limit) = predicted(decode_seconds, device), planned(decode_seconds, device)
    assert as_planned == pytest.approx(seconds, rel=1e-3)
    assert planned_limit == limit
