"""The doctor's arithmetic of workers and images."""

import math

import pytest

from flatout.commands.doctor_pace import Pace, judge_pace
from flatout.config.schema import Config


def test_one_worker_that_cannot_keep_up_is_named_with_its_shortfall() -> None:
    line = judge_pace(Pace(needed_per_second=2133, sample_seconds=0.00177, workers=1, cores=2), Config())
    assert line.status == "warning"
    for said in ("2,133 images/s", "1 worker(s) at 1.77 ms an image", "565", "waits 74 %"):
        assert said in line.text
    assert line.remedy is not None
    assert "set data.workers to 2, for 1,130 images/s" in line.remedy
    assert "4 cores would keep up, 2 are here" in line.remedy


def test_cores_that_suffice_need_only_workers() -> None:
    line = judge_pace(Pace(2133, 0.00177, workers=1, cores=8), Config())
    assert line.remedy == "set data.workers to 4, or to auto"
    assert judge_pace(Pace(2133, 0.00177, workers=4, cores=8), Config()).status == "ok"


def test_ranks_share_the_cores() -> None:
    alone = Pace(1000, 0.001, workers=1, cores=2)
    assert judge_pace(alone, Config()).status == "ok"
    assert judge_pace(Pace(1000, 0.001, workers=2, cores=2, ranks=2), Config()).status == "ok"
    assert judge_pace(Pace(1000, 0.001, workers=2, cores=2, ranks=4), Config()).status == "warning"


def test_without_workers_loading_and_computing_take_turns() -> None:
    assert Pace(1000, 0.001, workers=0, cores=8).delivered_per_second == pytest.approx(500)


def test_a_device_that_takes_no_time_is_no_number() -> None:
    line = judge_pace(Pace(math.inf, 0.001, workers=1, cores=2), Config())
    assert "any number of images/s" in line.text
    assert "inf" not in f"{line.text} {line.remedy}"
