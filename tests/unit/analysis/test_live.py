"""Figures and alarms of a run that goes on, from its summary and last steps."""

import json
import math
from typing import Any

import numpy as np
import pytest

from flatout.analysis.live import alarms, live_figures

SUMMARY: dict[str, Any] = {
    "total_steps": 100,
    "updated_unix": 1000.0,
    "time": {"wall_seconds": 60.0, "parts": {"data_wait": 6.0}},
    "cost": {"total_usd": 0.5},
    "accuracy": {"top1": 0.75, "train_loss": 0.3},
    "throughput": {"samples_per_second": 10.0},
}


def recent(steps: int = 20, wait: float = 0.1, loss: float = 1.0) -> Any:
    rows = [[n, 1000.0 + 2 * n, 8, loss, 0.1, 2.0, 2 * wait, 1] for n in range(1, steps + 1)]
    return np.array(rows, dtype=np.float64)


def test_a_run_that_goes_on_has_progress_time_left_and_dollars_that_tick() -> None:
    found = live_figures(SUMMARY, recent(), "running", usd_per_second=0.01, now_unix=1040.0)
    assert (found.step, found.progress) == (20, 0.2)
    assert found.seconds_left == pytest.approx(160)
    assert found.usd == pytest.approx(0.5 + 40 * 0.01)
    assert found.usd_left == pytest.approx(1.6)
    assert found.wall_seconds == pytest.approx(100)
    assert found.samples_per_second == pytest.approx(4)
    assert found.metric_text == "75.0 %"
    assert found.hint == ""


@pytest.mark.parametrize("column", range(1, 7))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_steps_that_are_no_numbers_give_no_figures_that_are_none(column: int, value: float) -> None:
    """A stream of the dashboard cannot hold them."""
    rows = recent()
    rows[3, column] = value
    found = live_figures(SUMMARY, rows, "running", 0.01, 1040.0)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_ended_run_says_what_its_summary_says() -> None:
    found = live_figures(SUMMARY, recent(0).reshape(0, 8), "completed", None, 2000.0)
    assert (found.progress, found.usd, found.samples_per_second) == (1.0, 0.5, 10.0)
    assert found.data_wait == pytest.approx(0.1)
    assert found.seconds_left is None


def test_alarms_name_what_costs_money_unseen() -> None:
    starved = recent(wait=0.6, loss=np.inf)
    figures = live_figures(SUMMARY, starved, "running", 0.01, 1400.0)
    found = alarms(figures, starved, "running", 1.0, 1400.0, {"memory-growth": "memory grows"})
    assert [each.key for each in found] == ["not-finite", "starved", "stalled", "budget", "finding-memory-growth"]
    healthy = recent()
    assert alarms(live_figures(SUMMARY, healthy, "running", None, 1041.0), healthy, "running", None, 1041.0, {}) == []
