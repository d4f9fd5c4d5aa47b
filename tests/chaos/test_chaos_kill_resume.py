"""kill -9 at any moment, then the same command again: equal to the bit to a run that nobody killed."""

import random
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import flatout
from flatout.engine import checkpoint
from training import (
    Command,
    assert_ledger,
    assert_same_training,
    checkpoints,
    command,
    installed_command,
    recipe,
    row_count,
    start,
    summary,
    temporaries,
    wait_until,
    write_recipe,
)

Moment = Callable[[Command, Path], None]
"""Returns when the moment to kill has come, or the command ended before it."""

KILLS = 10
EPOCHS = 4
EVERYTHING = {
    "train__optimizer": "adamw",
    "train__lr": 0.002,
    "train__accumulate": 2,
    "train__ema": 0.9,
    "train__clip_norm": 1.0,
}
EVERYTHING_DRAWN = {
    "shapes": {
        "views__small": {
            "base": "train-224", "size": 16, "mixup": 0.4, "cutmix": 1.0, "colour_jitter": [0.2, 0.2, 0.2], "erase": 0.3
        }
    },
    "sentences": {"model__dropout": 0.3, "train__checkpointing": True},
}  # fmt: skip


def after_rows(count: int) -> Moment:
    def wait(running: Command, run: Path) -> None:
        wanted = row_count(run) + count
        wait_until(lambda: row_count(run) >= wanted or not running.running, f"{count} more steps")

    return wait


def inside_a_checkpoint(running: Command, run: Path) -> None:
    left = temporaries(run)  # by the kill before; removed when the command begins
    if left:
        wait_until(lambda: temporaries(run) != left or not running.running, "what was left to be removed")
    wait_until(lambda: temporaries(run) or not running.running, "a checkpoint being written", pause_seconds=0.0005)


def while_starting(running: Command, run: Path) -> None:
    log = (run / "log.txt").stat().st_size
    wait_until(lambda: (run / "log.txt").stat().st_size > log or not running.running, "the first words")


def moments(seed: int) -> list[Moment]:
    """One while starting, every third inside a checkpoint, the others after a random number of steps."""
    chance = random.Random(seed)
    chosen = [inside_a_checkpoint if number % 3 == 2 else after_rows(chance.randint(1, 7)) for number in range(KILLS)]
    chosen[KILLS // 2 - 1] = while_starting
    return chosen


def changing_workers(attempt: int, data: Path) -> tuple[str, ...]:
    """Another number and kind of workers at every attempt: nothing of it may show in the result."""
    workers, kind = [(1, "thread"), (0, "auto"), (2, "process"), (0, "auto"), (4, "thread")][attempt % 5]
    kinds = ("--set", f"data.worker_kind={kind}") if data.name == "shapes" else ()  # text has one kind only
    return ("--set", f"data.workers={workers}", *kinds)


@pytest.fixture(scope="module")
def four_epochs(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, by the installed command and without a break."""
    folder = tmp_path_factory.mktemp("four-epochs")
    config = write_recipe(folder / "tiny.yaml", samples, train__epochs=EPOCHS)
    finished = installed_command("train", config, cwd=folder)
    assert finished.code == 0, finished.err
    return folder / "runs" / "tiny"


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "seed"), [("images", 1), ("images", 2), ("text", 2)], indirect=["samples"])
def test_ten_kills_leave_no_trace(work: Path, samples: Path, four_epochs: Path, seed: int) -> None:
    config, run = write_recipe(work / "tiny.yaml", samples, train__epochs=EPOCHS), work / "runs" / "tiny"
    half_written = 0
    for attempt, moment in enumerate(moments(seed)):
        running = start("train", config, *(changing_workers(attempt, samples) if seed == 2 else ()), cwd=work)
        moment(running, run)
        assert running.running, running.wait().err
        running.kill()
        half_written += bool(temporaries(run))
    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    assert_same_training(run, four_epochs)
    assert_ledger(run, epochs=EPOCHS)
    assert half_written, "no kill landed inside a checkpoint"
    assert not temporaries(run)
    for path in checkpoints(run):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(1, "thread"), (2, "thread"), (4, "thread"), (1, "process"), (2, "process"), (4, "process")],
)
def test_workers_leave_no_trace(work: Path, shapes: Path, uninterrupted: Path, workers: int, kind: str) -> None:
    run = flatout.train(recipe(shapes, data__workers=workers, data__worker_kind=kind), run=work / "run")
    assert_same_training(run.directory, uninterrupted)
    assert_ledger(run.directory)


@pytest.mark.parametrize(("samples", "workers"), [("images", 0), ("images", 2), ("text", 2)], indirect=["samples"])
def test_a_kill_leaves_no_trace_with_every_part_that_has_state(work: Path, samples: Path, workers: int) -> None:
    everything = EVERYTHING | EVERYTHING_DRAWN[samples.name]
    whole = flatout.train(recipe(samples, **everything), run=work / "whole")
    config, run = write_recipe(work / "tiny.yaml", samples, **everything, data__workers=workers), work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 17 or not running.running, "17 steps")
    running.kill()
    assert command("train", config, cwd=work).code == 0
    assert_same_training(run, whole.directory)


def test_a_killed_loader_worker_is_replaced_and_leaves_no_trace(work: Path, shapes: Path, uninterrupted: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, data__workers=1, data__worker_kind="process")
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 5 or not running.running, "5 steps")
    for worker in running.children():
        worker.kill()
    finished = running.wait()
    assert finished.code == 0, finished.err
    assert_same_training(run, uninterrupted)


def test_a_kill_leaves_no_processes_behind(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, data__workers=3, data__worker_kind="process")
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 2 or not running.running, "2 steps")
    workers = running.children()
    assert len(workers) >= 3
    listed = command("runs", cwd=work)
    assert "running" in listed.out
    running.kill()
    wait_until(lambda: not any(map(alive, workers)), "the workers to end after their trainer was killed", 30)


def test_a_killed_run_is_listed_as_failed_with_a_cause(work: Path, shapes: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes), work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 4 or not running.running, "4 steps")
    running.kill()
    assert summary(run)["status"] == "running"  # nobody was left to write it
    listed = command("runs", cwd=work)
    assert listed.code == 0
    assert "failed" in listed.out
    assert "running" not in listed.out
    assert summary(run)["status"] == "running"  # who looks does not write
    assert "killed" in command("report", "runs/tiny", cwd=work).out


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_emulated_run_survives_a_kill_to_the_bit(work: Path, shapes: Path) -> None:
    config = write_recipe(
        work / "tiny.yaml", shapes, device="emulated", emulated={"base_seconds": 0.02}, train__epochs=1, **EVERYTHING
    )
    whole, killed = work / "runs" / "whole", work / "runs" / "killed"
    assert command("train", config, "--run", whole, cwd=work).code == 0
    running = start("train", config, "--run", killed, cwd=work)
    after_rows(8)(running, killed)
    running.kill()
    assert summary(killed)["status"] == "running"
    assert command("train", config, "--run", killed, cwd=work).code == 0
    assert_same_training(killed, whole)
