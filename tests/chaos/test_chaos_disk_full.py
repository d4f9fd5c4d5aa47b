"""A disk that is full before, during and at the end of a run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flatout.engine import checkpoint
from flatout.runs.tables import Table, read_table
from training import (
    DEADLINE_SECONDS,
    Command,
    Finished,
    assert_ledger,
    assert_same_training,
    checkpoints,
    command,
    forked,
    row_count,
    snapshot,
    start,
    summary,
    wait_until,
    write_recipe,
)

MIB = 2**20


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size_bytes}", self.folder], check=True)

    def fill(self, leave_bytes: int) -> None:
        free = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize
        with (self.folder / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - leave_bytes))

    def empty(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill_while_training(running: Command, run: Path, disk: Disk, leave_bytes: int) -> Finished:
    """The trainer stands still while the disk is filled, so that it sees it full or not full and nothing between."""
    wait_until(lambda: len(checkpoints(run)) >= 2 or not running.running, "two checkpoints")
    running.send(signal.SIGSTOP)
    disk.fill(leave_bytes)
    running.send(signal.SIGCONT)
    return running.wait()


@pytest.mark.parametrize("leave_bytes", [0, MIB])
def test_no_room_at_the_start(work: Path, shapes: Path, disk: Disk, leave_bytes: int) -> None:
    config = write_recipe(work / "tiny.yaml", shapes)
    disk.fill(leave_bytes)
    before = snapshot(work, disk.folder)
    finished = command("train", config, "--run", disk.folder / "run", cwd=work)
    assert finished.code == 2
    assert "free" in finished.error_line
    assert "--run DIR" in finished.error_line
    assert snapshot(work, disk.folder) == before


def test_full_at_checkpoints(work: Path, shapes: Path, disk: Disk, uninterrupted: Path) -> None:
    """Room for records but not for checkpoints: three warnings, then the end; the old checkpoint is still good."""
    config, run = write_recipe(work / "tiny.yaml", shapes), disk.folder / "run"
    failed = fill_while_training(start("train", config, "--run", run, cwd=work), run, disk, MIB // 2)
    assert failed.code == 1
    assert failed.last_line.startswith("flatout: 3 checkpoints in a row could not be written")
    assert failed.err.count("WARNING") == 3
    assert summary(run)["status"] == "failed"
    assert "checkpoints" in summary(run)["cause"]
    found, notes = checkpoint.load_newest(run / "checkpoints")
    assert found is not None
    assert notes == []
    steps = [int(row["step"]) for row in read_table(run / "steps.csv")]
    assert steps == list(range(1, len(steps) + 1))
    disk.empty()
    assert command("train", config, "--run", run, cwd=work).code == 0
    assert_same_training(run, uninterrupted)
    assert_ledger(run)


def test_full_at_the_last_checkpoint_is_not_a_completed_run(
    work: Path, shapes: Path, disk: Disk, uninterrupted: Path
) -> None:
    """Where training ends is always saved, or the run says that it is not."""
    config, run = write_recipe(work / "tiny.yaml", shapes), disk.folder / "run"
    few = ("--set", "checkpoint.every_steps=7")  # 7, 14, then both at the end of the first epoch: 20 and 21
    running = start("train", config, "--run", run, *few, cwd=work)
    wait_until(lambda: row_count(run) >= 36 or not running.running, "the checkpoint of step 35 to be behind")
    running.send(signal.SIGSTOP)
    disk.fill(MIB // 2)
    running.send(signal.SIGCONT)
    failed = running.wait()
    assert failed.code == 1
    assert "step 40, where training ended, could not be written" in failed.last_line
    assert summary(run)["status"] == "failed"
    disk.empty()
    assert command("train", config, "--run", run, *few, cwd=work).code == 0
    assert_same_training(run, uninterrupted)


def _train_and_fill_after_the_last_checkpoint(config: str, folder: str) -> None:
    from flatout.cli.main import run
    from flatout.training import session

    digest = session.state_digest

    def fill_and_digest(tensors: object) -> str:
        Disk(Path(folder)).fill(0)
        return digest(tensors)

    session.state_digest = fill_and_digest  # asked for once, between the last checkpoint and the last summary
    sys.stderr = (Path(folder).parent / "said.txt").open("w")
    sys.argv = ["flatout", "train", config, "--run", f"{folder}/run"]
    run()


def test_full_at_the_last_summary(work: Path, shapes: Path, disk: Disk, uninterrupted: Path) -> None:
    """Nothing of the training is lost: the line says where the weights are, and the status is final."""
    config, run = write_recipe(work / "tiny.yaml", shapes), disk.folder / "run"
    with forked(_train_and_fill_after_the_last_checkpoint, str(config), str(disk.folder)) as training:
        training.join(DEADLINE_SECONDS)
        code = training.exitcode
    said = (disk.folder.parent / "said.txt").read_text()
    assert code == 1, said
    assert "Traceback" not in said
    assert f"its weights are safe in {run / 'checkpoints'}" in said.splitlines()[-1]
    assert "No space left" in said.splitlines()[-1]
    assert summary(run)["status"] == "failed"
    assert "weights are safe" in summary(run)["cause"]
    disk.empty()
    assert command("train", config, "--run", run, cwd=work).code == 0
    assert_same_training(run, uninterrupted)


def test_full_for_records(work: Path, shapes: Path, disk: Disk, uninterrupted: Path) -> None:
    """Not a byte left: the run ends with a cause, and every row that is there is whole and counts once."""
    config, run = write_recipe(work / "tiny.yaml", shapes, checkpoint__every_steps=2), disk.folder / "run"
    failed = fill_while_training(start("train", config, "--run", run, cwd=work), run, disk, 0)
    assert failed.code == 1
    assert failed.last_line.startswith("flatout: ")
    assert summary(run)["status"] == "failed", "said without room for a new file"
    assert (run / "steps.csv").read_bytes().endswith(b"\n")
    assert [int(row["step"]) for row in read_table(run / "steps.csv")] == list(range(1, row_count(run) + 1))
    command("runs", disk.folder, cwd=work)
    assert not list(run.glob(".*.tmp"))
    disk.empty()
    assert command("train", config, "--run", run, cwd=work).code == 0
    assert_same_training(run, uninterrupted)
    assert_ledger(run)


def test_a_table_on_a_full_disk_keeps_whole_rows_only(disk: Disk) -> None:
    table = Table(disk.folder / "table.csv", ("step", "text"))
    disk.fill(20 * 1024)
    written = 0
    with suppress(OSError):
        while written < 1000:
            table.append({"step": written, "text": "x" * 500})
            written += 1
    assert 0 < written < 1000
    disk.empty()
    table.append({"step": written, "text": "after"})
    table.close()
    rows = read_table(disk.folder / "table.csv")
    assert [int(row["step"]) for row in rows] == list(range(written + 1))
    assert rows[-1]["text"] == "after"


def test_a_run_directory_that_cannot_be_moved_aside_is_said(work: Path, shapes: Path, disk: Disk) -> None:
    """--fresh on a mount point, which cannot be renamed."""
    config = write_recipe(work / "tiny.yaml", shapes, train__max_steps=1)
    assert command("train", config, "--run", disk.folder, cwd=work).code == 0
    before = snapshot(disk.folder)
    refused = command("train", config, "--run", disk.folder, "--fresh", cwd=work)
    assert refused.code == 2
    assert "cannot move" in refused.error_line
    assert snapshot(disk.folder) == before
