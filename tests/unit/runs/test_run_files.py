"""Tables, texts and JSON of a run: whole rows or whole files, whatever cut them short."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import RunDirectoryError
from flatout.runs.directory import read_json, write_json, write_text
from flatout.runs.summary import accuracy, add_parts, throughput
from flatout.runs.tables import Table, effective_rows, read_table

some = settings(max_examples=30, deadline=None)  # a loaded machine is no failure

ODD = [
    "plain",
    "new\nline",
    "carriage\r\nreturn",
    'quo"te',
    "com,ma",
    "form\x0cfeed",
    "sep\u2028arator",
    "é",
    "bad\udcff",
]


def append(path: Path, *rows: dict[str, object]) -> None:
    table = Table(path, ("name", "number"))
    for row in rows:
        table.append(row)
    table.close()


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    append(path, *({"name": name, "number": number} for number, name in enumerate(ODD)))
    append(path, {"name": "a later process", "number": 1 / 3}, {"number": None})
    rows = read_table(path)
    assert [row["name"] for row in rows] == [*ODD, "a later process", ""]
    assert [row["number"] for row in rows[:2]] == ["0", "1"]
    assert float(rows[-2]["number"]) == 1 / 3
    assert rows[-1]["number"] == ""


def test_every_row_is_in_the_file_at_once(tmp_path: Path) -> None:
    table = Table(tmp_path / "table.csv", ("name",))
    for count in range(1, 4):
        table.append({"name": "x"})
        assert len(read_table(tmp_path / "table.csv")) == count
    table.close()


@some
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=4))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    append(path, *({"name": name, "number": 0} for name in names))
    assert [row["name"] for row in read_table(path)] == names


@pytest.mark.parametrize("name", ["plain", "new\nline", 'two\n"quotes"\nthere'])
def test_a_row_cut_anywhere_is_left_out_and_the_next_one_is_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / "table.csv"
    append(path, {"name": "first", "number": 1})
    before = path.stat().st_size
    append(path, {"name": name, "number": 2})
    data = path.read_bytes()
    for length in range(before, len(data)):
        path.write_bytes(data[:length])
        assert [row["name"] for row in read_table(path)] == ["first"]
        append(path, {"name": "next", "number": 3})
        assert [(row["name"], row["number"]) for row in read_table(path)] == [("first", "1"), ("next", "3")]


def test_a_header_cut_short_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("name,numb")
    assert read_table(path) == []
    append(path, {"name": "first", "number": 1})
    assert read_table(path) == [{"name": "first", "number": "1"}]


def test_a_column_that_only_later_rows_have_is_added(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    table = Table(path, ("name",))
    table.append({"name": "a", "top1": 0.5})
    table.close()
    append(path, {"number": 7, "top1": 0.6, "name": "b"})
    assert read_table(path) == [
        {"name": "a", "top1": "0.5", "number": ""},
        {"name": "b", "top1": "0.6", "number": "7"},
    ]


def test_no_table_means_no_rows(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none.csv") == []


def rows(*pairs: tuple[int, int]) -> list[dict[str, str]]:
    return [{"attempt": str(attempt), "step": str(step)} for attempt, step in pairs]


def test_rows_after_a_resumed_step_are_superseded() -> None:
    recorded = rows((1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (3, 5))
    assert effective_rows(recorded, "step") == rows((1, 1), (1, 2), (2, 3), (3, 4), (3, 5))


def test_a_later_attempt_that_got_less_far_supersedes_all_that_came_after() -> None:
    assert effective_rows(rows((1, 1), (1, 2), (1, 3), (1, 4), (2, 2)), "step") == rows((1, 1), (2, 2))


@some
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=6))
def test_every_step_counts_once_whatever_was_killed(attempts: list[tuple[int, int]]) -> None:
    """Each attempt starts at or before where the one before it stopped."""
    recorded, reached = [], 0
    for number, (back, more) in enumerate(attempts, 1):
        first = max(0, reached - back)
        recorded += [(number, step) for step in range(first + 1, first + more + 1)]
        reached = first + more if more else reached
    kept = [int(row["step"]) for row in effective_rows(rows(*recorded), "step")]
    assert kept == list(range(1, reached + 1))


@contextmanager
def files_of_at_most(byte_count: int) -> Iterator[None]:
    """As on a full disk: writing beyond it fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_text_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_text(path, "old")
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_text(path, "new" * 1000)
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_row_that_does_not_fit_the_disk_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    table = Table(path, ("name",))
    table.append({"name": "first"})
    with files_of_at_most(1000), pytest.raises(OSError, match=r"File too large|No space left"):
        table.append({"name": "x" * 2000})
    assert [row["name"] for row in read_table(path)] == ["first"]
    table.append({"name": "second"})
    table.close()
    assert [row["name"] for row in read_table(path)] == ["first", "second"]


def test_a_kill_while_writing_leaves_the_old_or_the_new_text(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    script = (
        "import sys; from pathlib import Path; from flatout.runs.directory import write_json\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; write_json(Path(sys.argv[1]), {'n': n, 'fill': 'x' * 5000}); print(n, flush=True)\n"
    )
    for lines in (1, 5, 9):
        writer = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        values = read_json(path)
        assert values["n"] >= lines
        assert len(values["fill"]) == 5000


def test_json_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert read_json(path) == {}
    path.write_text('{"half": ')
    with pytest.raises(RunDirectoryError, match=r"cannot read .*summary\.json"):
        read_json(path)


def test_not_a_number_never_gets_into_json(tmp_path: Path) -> None:
    epochs = [
        {"epoch": "0", "top1": "0.5", "val_loss": "1.5"},
        {"epoch": "1", "top1": "nan", "val_loss": "inf"},
    ]
    figures = accuracy(epochs, "top1", higher_is_better=True)
    assert figures == {"top1": None, "top5": None, "bleu": None, "val_loss": None, "train_loss": None, "best_epoch": 0}
    write_json(tmp_path / "summary.json", figures)
    assert json.loads((tmp_path / "summary.json").read_text()) == figures


def test_best_epoch_follows_the_metric() -> None:
    epochs = [
        {"epoch": "0", "top1": "0.5", "val_loss": "1.0"},
        {"epoch": "1", "top1": "0.7", "val_loss": "1.2"},
        {"epoch": "2", "top1": "", "val_loss": ""},
        {"epoch": "3", "top1": "0.6", "val_loss": "1.1"},
    ]
    assert accuracy(epochs, "top1", higher_is_better=True)["best_epoch"] == 1
    assert accuracy(epochs, "val_loss", higher_is_better=False)["best_epoch"] == 0
    assert accuracy(epochs, "top1", higher_is_better=True)["top1"] == 0.6
    assert accuracy([], "top1", higher_is_better=True)["best_epoch"] is None


def test_throughput_and_parts() -> None:
    figures = throughput([1.0, 2.0, 1.0], [10, 10, 20])
    assert figures["samples_per_second"] == 10
    assert figures["steps_per_second"] == 0.75
    assert figures["step_seconds"] == {"mean": pytest.approx(4 / 3), "p50": 1.0, "p95": pytest.approx(1.9)}
    assert throughput([], []) == {"samples_per_second": None, "steps_per_second": None, "step_seconds": None}
    assert add_parts([{"forward": 1.0, "copy": 2.0}, {"forward": 3.0}]) == {"forward": 4.0, "copy": 2.0}
