"""Ctrl-C and SIGTERM: saved at the step reached, exit 130, and the same command goes on as if nothing had happened."""

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from training import (
    assert_ledger,
    assert_same_training,
    checkpoints,
    command,
    row_count,
    start,
    summary,
    trained,
    wait_until,
    write_recipe,
)


@pytest.mark.parametrize(
    ("number", "name", "workers"),
    [(signal.SIGTERM, "SIGTERM", 0), (signal.SIGINT, "Ctrl-C", 0), (signal.SIGINT, "Ctrl-C", 2)],
)
def test_a_signal_saves_the_step_reached(
    work: Path, shapes: Path, uninterrupted: Path, number: signal.Signals, name: str, workers: int
) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, checkpoint__every_steps=1000, data__workers=workers)
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 5 or not running.running, "5 steps")
    running.send(number)
    stopped = running.wait()
    assert stopped.code == 130
    assert stopped.last_line.startswith(f"flatout: stopped by {name}")
    assert summary(run)["status"] == "stopped"
    assert name in summary(run)["cause"]
    reached = int(trained(run)[-1][0])
    assert checkpoints(run)[-1].name == f"step-{reached:09d}.safetensors"
    listed = command("runs", cwd=work)
    assert "stopped" in listed.out
    assert command("train", config, cwd=work).code == 0
    assert_same_training(run, uninterrupted)
    assert_ledger(run)


def test_a_second_ctrl_c_ends_at_once(work: Path, shapes: Path) -> None:
    step_seconds = 600.0
    config = write_recipe(
        work / "tiny.yaml", shapes, device="emulated", emulated={"base_seconds": step_seconds}, data__workers=1
    )
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: (run / "summary.json").exists(), "the run to begin")
    workers = running.children()
    began = time.monotonic()

    def interrupted_again() -> bool:
        with suppress(ProcessLookupError):  # it may end between two looks
            running.send(signal.SIGINT)  # two that come together are one to the process: repeated until it ends
        return not running.running

    wait_until(interrupted_again, "the second Ctrl-C to end the run", 60)
    assert running.wait().code == 130
    assert time.monotonic() - began < step_seconds
    wait_until(lambda: not any(worker.is_running() for worker in workers), "the workers to end", 60)
    command("runs", cwd=work)
    assert summary(run)["status"] == "failed"


def test_a_signal_before_the_first_step_stops_after_it(work: Path, shapes: Path, uninterrupted: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes)
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: (run / "lock").exists() and (run / "lock").stat().st_size, "the lock")
    wait_until(lambda: (run / "log.txt").exists() or not running.running, "the first words")
    running.send(signal.SIGTERM)
    assert running.wait().code == 130
    assert summary(run)["status"] == "stopped"
    assert command("train", config, cwd=work).code == 0
    assert_same_training(run, uninterrupted)
