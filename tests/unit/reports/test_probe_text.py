"""A probe in words: which of device and loading a run would wait for, and how far the model can be trusted."""

from dataclasses import replace

import pytest

from flatout.diagnosis.calibration import Calibration, Settings
from flatout.diagnosis.model.device import DeviceTime
from flatout.reports.probe_text import probe_lines

PROBED = Calibration(
    settings=Settings(batch_size=64, workers=1, epochs=10),
    device=DeviceTime(0.010, 0.001),
    device_kind="cuda",
    cores=4,
    threads=1,
    step_extra_seconds=0.0,
    between_seconds=0.0,
    fetch_seconds=0.0,
    decode_seconds=0.002,
    augment_seconds=0.0,
    bytes_per_sample=1e5,
    remote=False,
    fetchers=0,
    samples_per_epoch=6400,
    startup_seconds=0.0,
    validation_seconds=0.0,
    checkpoint_seconds=0.0,
    step_error=0.03,
    contention=0.0,
)


@pytest.mark.parametrize(("decode_seconds", "told"), [(0.002, "Preparing keeps up"), (0.02, "The device would wait")])
def test_it_says_what_a_run_would_wait_for(decode_seconds: float, told: str) -> None:
    text = "\n".join(probe_lines(replace(PROBED, decode_seconds=decode_seconds), 0.02))
    assert "74 ms for a batch of 64" in text
    assert told in text
    assert "predictions can be trusted" in text


def test_a_model_that_misses_real_steps_says_so() -> None:
    assert "30.0 % faster than they were; predictions from it are rough" in probe_lines(PROBED, -0.3)[-1]
