"""steps.csv has one schema: what training writes is what readers know, and what is no number is refused."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from flatout.engine.loop import StepRecord
from flatout.errors import BadFile
from flatout.runs.step_totals import read_steps
from flatout.runs.steps import STEP_COLUMNS, StepRow, read_step_rows
from flatout.runs.tables import Table


def test_every_column_that_is_read_is_written_by_the_loop() -> None:
    assert set(STEP_COLUMNS) <= {"attempt", *(each.name for each in fields(StepRecord))}


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        StepRow(1, 1, 0, 0, 8, "ab", 2.5, 0.1, 0.25, 0.05, 1000.5, 0.125),
        StepRow(1, 2, 0, 1, 8, "cd", None, 0.1, 0.25, 0.05, 1000.75, 0.125),
    ]
    table = Table(tmp_path / "steps.csv", STEP_COLUMNS)
    for row in rows:
        table.append({**row._asdict(), "bytes_sent": 7})  # a column for people
    table.close()
    assert read_step_rows(tmp_path / "steps.csv") == rows
    assert rows[0].own_seconds == pytest.approx(0.2)


def test_what_a_log_does_not_say_is_its_default(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("attempt,step,loss\n1,4,nan\n1,5,\n")
    first, second = read_step_rows(path)
    assert math.isnan(first.loss or 0.0)
    assert second == StepRow(1, 5)
    assert (second.seconds, second.wait_seconds, second.step_seconds) == (0.0, 0.0, None)
    assert read_step_rows(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,,0,1.0,0.1", "step of row 2 is ''"),
        ("1,2.5,0,1.0,0.1", "step of row 2 is '2.5'"),
        ("1,2,-1,1.0,0.1", "epoch of row 2 is '-1'"),
        ("1,2,0,one,0.1", "loss of row 2 is 'one'"),
        ("1,2,0,1.0,-0.1", "step_seconds of row 2 is '-0.1'"),
        ("1,2,0,1.0,1e999", "step_seconds of row 2 is '1e999'"),
    ],
)
def test_a_cell_of_another_kind_is_named(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"attempt,step,epoch,loss,step_seconds\n1,1,0,2.0,0.1\n{row}\n")
    with pytest.raises(BadFile, match="expected a number") as caught:
        read_step_rows(path)
    assert said in str(caught.value)


@pytest.mark.parametrize("cell", ["9" * 400, "x", "", "nan"])
@pytest.mark.parametrize("column", ["step", "step_seconds", "samples"])
def test_totals_of_a_damaged_table_are_refused(tmp_path: Path, column: str, cell: str) -> None:
    columns = ("attempt", "step", "step_seconds", "samples")
    table = Table(tmp_path / "steps.csv", columns)
    table.append({**dict.fromkeys(columns, 1), column: cell})
    table.close()
    with pytest.raises(BadFile, match="expected numbers"):
        read_steps(tmp_path / "steps.csv")
