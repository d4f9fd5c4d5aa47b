"""A run directory that is deleted, moved or replaced in mid-run: noticed at the next checkpoint, nothing lost unsaid."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.errors import RunFailed
from flatout.runs import RunDirectory
from training import (
    Command,
    assert_ledger,
    assert_same_training,
    checkpoints,
    command,
    row_count,
    snapshot,
    start,
    summary,
    wait_until,
    write_recipe,
)

DDP = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False}


def empty(run: Path) -> None:
    for path in run.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def disturb(running: Command, run: Path, action: Callable[[Path], object], steps: int = 7) -> None:
    """While the trainer and its ranks stand still, in the midst of the run."""
    wait_until(lambda: row_count(run) >= steps or not running.running, "some steps")
    stopped = [running.pid, *(child.pid for child in running.children())]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    action(run)
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("action", [shutil.rmtree, empty])
def test_deleted_is_written_anew(
    work: Path, shapes: Path, uninterrupted: Path, action: Callable[[Path], object]
) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes), work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    disturb(running, run, action)
    ended = running.wait()
    assert ended.code == 0, ended.err
    assert "was deleted while training; found at step" in ended.err
    assert_same_training(run, uninterrupted)
    assert_ledger(run)
    assert checkpoints(run)
    assert (run / "env.json").exists()
    assert not RunDirectory(run).in_use()


def test_deleted_under_ranks(work: Path, shapes: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, **DDP), work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    disturb(running, run, shutil.rmtree)
    ended = running.wait()
    assert ended.code == 0, ended.err
    assert "was deleted while training" in ended.err
    assert_ledger(run, batch_size=16)
    assert checkpoints(run)


def test_moved_ends_with_where_it_is(work: Path, shapes: Path, uninterrupted: Path) -> None:
    config, run, elsewhere = write_recipe(work / "tiny.yaml", shapes), work / "runs" / "tiny", work / "elsewhere"
    running = start("train", config, cwd=work)
    disturb(running, run, lambda _: run.rename(elsewhere))
    ended = running.wait()
    assert ended.code == 1
    assert f"was moved to {elsewhere} while training" in ended.last_line
    assert f"--run {elsewhere} resumes" in ended.last_line
    assert not run.exists()
    assert summary(elsewhere)["status"] == "failed"
    assert command("train", config, "--run", elsewhere, cwd=work).code == 0
    assert_same_training(elsewhere, uninterrupted)
    assert_ledger(elsewhere)


def test_replaced_is_left_alone(work: Path, shapes: Path, uninterrupted: Path) -> None:
    """By a copy of another run: what this one knows goes beside it."""
    config, run = write_recipe(work / "tiny.yaml", shapes), work / "runs" / "tiny"

    def replace(run: Path) -> None:
        shutil.rmtree(run)
        shutil.copytree(uninterrupted, run, symlinks=True)

    running = start("train", config, cwd=work)
    disturb(running, run, replace)
    ended = running.wait()
    assert ended.code == 1
    assert "was replaced by another one, which is left alone" in ended.last_line
    assert snapshot(run) == {name.replace(str(uninterrupted), str(run)): text
                             for name, text in snapshot(uninterrupted).items()}  # fmt: skip
    (kept,) = run.parent.glob("tiny-kept-*")
    assert f"--run {kept.relative_to(work)} resumes" in ended.last_line
    assert summary(kept)["status"] == "failed"
    assert command("train", config, "--run", kept, cwd=work).code == 0
    assert_same_training(kept, uninterrupted)
    assert_ledger(kept)


def test_gone_between_the_last_word_and_the_report_is_no_user_error(tmp_path: Path) -> None:
    from flatout.commands.train import read_finished

    with pytest.raises(RunFailed, match="ended well, but"):
        read_finished(RunDirectory(tmp_path / "gone"))
