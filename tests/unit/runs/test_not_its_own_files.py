"""A run directory from anywhere: no file that lies elsewhere is shown, written to or waited for by way of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.commands.dashboard import Board
from flatout.commands.dashboard_run import WatchedRuns
from flatout.errors import RunDirectoryError
from flatout.runs import RunDirectory, read_run
from flatout.runs.reading import list_runs

SECRET = "step,loss\nsecret,words\n"
FILES = ("lock", "log.txt", "steps.csv", "quarantine.csv", "summary.json", "spans/rank0.jsonl", "spans")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, and a file that belongs to neither."""
    for name in ("theirs", "whole"):
        (tmp_path / "runs" / name / "spans").mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text(f"name: {name}\n")
        (tmp_path / "runs" / name / "summary.json").write_text('{"status": "completed"}')
    (tmp_path / "elsewhere").write_text(SECRET)
    return tmp_path


def lead_out(folder: Path, name: str) -> None:
    path = folder / "runs/theirs" / name
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(folder / "elsewhere")


@pytest.mark.parametrize("name", FILES)
def test_a_link_that_leads_out_is_not_followed(folder: Path, name: str) -> None:
    lead_out(folder, name)
    runs = folder / "runs"
    with pytest.raises(RunDirectoryError, match="leads out of the run directory"):
        read_run(runs / "theirs")
    with pytest.raises(RunDirectoryError, match="leads out of the run directory"):
        RunDirectory(runs / "theirs").lock()
    assert (folder / "elsewhere").read_text() == SECRET
    assert [run.status for run in list_runs(runs)] == ["failed", "completed"]
    board = Board([runs])
    assert {row["name"]: row["status"] for row in board.rows()[0]}["whole"] == "completed"
    shown = "".join(WatchedRuns(board).fragments("0/theirs")[0].values())
    assert "leads out of the run directory" in shown
    assert "secret" not in shown


def test_a_link_to_nothing_is_refused_before_it_is_written_through(folder: Path) -> None:
    (folder / "runs/theirs/epochs.csv").symlink_to("gone/epochs.csv")
    with pytest.raises(RunDirectoryError, match="or nowhere"):
        RunDirectory(folder / "runs/theirs").lock()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_never_ends_is_not_read(folder: Path, make: Callable[[Path], object]) -> None:
    make(folder / "runs/theirs/log.txt")
    with pytest.raises(RunDirectoryError, match="pipe or a device"):
        read_run(folder / "runs/theirs")


def test_links_that_people_make_are_followed(folder: Path) -> None:
    """Checkpoints on a larger disk, a run under another name, a file within, and what is none of a run's."""
    run = folder / "runs/theirs"
    (folder / "large").mkdir()
    (run / "checkpoints").symlink_to(folder / "large")
    (run / "notes.md").symlink_to(folder / "elsewhere")
    (run / "moved.json").write_text("{}")
    (run / "env.json").symlink_to("moved.json")
    (folder / "runs/again").symlink_to(run)
    assert read_run(folder / "runs/again").status == "completed"
    directory = RunDirectory(folder / "runs/again")
    directory.lock()
    directory.unlock()
