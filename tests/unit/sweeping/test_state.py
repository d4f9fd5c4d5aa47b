"""sweep.json goes on as it was written, and is refused in one line where it says what no sweep does."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import RunDirectoryError
from flatout.sweeping.halving import JobOutcome
from flatout.sweeping.state import FILE, FinishedRung, SweepState, read_state

PLAN = {"rungs": [1, 2], "configurations": [["01", "x"], ["02", "y"]]}
RUNG = FinishedRung(1, (JobOutcome(1, 0.5), JobOutcome(0, None, "out of memory")), (1,), 12.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    SweepState(PLAN, [RUNG], 13.0, 12.0).write(tmp_path)
    assert read_state(tmp_path, PLAN) == SweepState(PLAN, [RUNG], 13.0, 12.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("plan", [1]),
        ("plan", None),
        ("rungs", {"a": 1}),
        ("rungs", [None]),
        ("rungs", [{"epochs": 1, "outcomes": [], "kept": [2], "seconds": 1.0}]),
        ("rungs", [{"epochs": 1, "outcomes": [{"configuration": 7}], "kept": [], "seconds": 1.0}]),
        ("rungs", [{"epochs": 1, "outcomes": [{"configuration": 0, "value": "x"}], "kept": [], "seconds": 1.0}]),
        ("rungs", [{"epochs": 1, "outcomes": [], "kept": [], "seconds": 1.0}] * 3),
        ("spent_seconds", None),
        ("rung_began_at", [1]),
    ],
)
def test_a_damaged_state_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    SweepState(PLAN, [RUNG], 13.0, 12.0).write(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**written, key: value}))
    with pytest.raises(RunDirectoryError, match=r"sweep.json: .*; --fresh moves the sweep aside"):
        read_state(tmp_path, PLAN)
