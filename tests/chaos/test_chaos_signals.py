"""Ctrl-C, SIGTERM and SIGHUP: saved at the step reached, exit 130, and the same command goes on as if nothing had
happened. Output that nobody reads any more ends nothing."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flatout.runs import RunDirectory
from training import (
    DEADLINE_SECONDS,
    STEPS,
    assert_ledger,
    assert_same_training,
    checkpoints,
    command,
    forked,
    row_count,
    start,
    summary,
    trained,
    wait_until,
    write_recipe,
)


@pytest.mark.parametrize(
    ("number", "name", "workers"),
    [
        (signal.SIGTERM, "SIGTERM", 0),
        (signal.SIGHUP, "SIGHUP", 0),
        (signal.SIGINT, "Ctrl-C", 0),
        (signal.SIGINT, "Ctrl-C", 2),
    ],
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
    assert summary(run)["status"] == "stopped"
    assert summary(run)["cause"].startswith("Ctrl-C, twice")
    assert not RunDirectory(run).in_use()


def _train_with_a_slow_start(config: str, folder: str) -> None:
    from flatout.cli.main import run
    from flatout.commands import train

    def hang(*_: object) -> None:
        (Path(folder) / "starting").touch()
        time.sleep(10 * DEADLINE_SECONDS)  # a listing of a large bucket

    os.chdir(folder)
    train.prepare_setup = hang
    sys.stderr = open("said.txt", "w")  # noqa: SIM115
    sys.argv = ["flatout", "train", config]
    run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("killed_before", [False, True])
def test_a_signal_during_the_start_leaves_no_lock_and_nothing_running(
    work: Path, shapes: Path, number: signal.Signals, killed_before: bool
) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, train__max_steps=5), work / "runs" / "tiny"
    if killed_before:  # whose summary still says running
        first = start("train", config, cwd=work)
        wait_until(lambda: row_count(run) >= 1 or not first.running, "a step")
        first.kill()
    with forked(_train_with_a_slow_start, str(config), str(work)) as starting:
        wait_until((work / "starting").exists, "the start")
        assert RunDirectory(run).in_use()
        os.kill(starting.pid, number)
        starting.join(DEADLINE_SECONDS)
        assert starting.exitcode == 130
    assert "before training began" in (work / "said.txt").read_text()
    assert not RunDirectory(run).in_use()
    assert summary(run)["status"] == "failed" if killed_before else not run.parent.exists()
    assert command("train", config, cwd=work).code == 0


def test_a_second_ctrl_c_to_the_launcher_ends_its_ranks(work: Path, shapes: Path) -> None:
    config = write_recipe(
        work / "tiny.yaml", shapes, **DDP, device="emulated", emulated={"base_seconds": 600.0}, data__workers=0
    )
    run, launcher = work / "runs" / "tiny", start("train", config, cwd=work)
    wait_until(lambda: (run / "summary.json").exists() or not launcher.running, "the run to begin")
    ranks = launcher.children()
    assert len(ranks) >= 2

    def interrupted_again() -> bool:
        if summary(run)["status"] == "running":
            launcher.send(signal.SIGINT)  # two that come together are one to the process
        return not launcher.running

    wait_until(interrupted_again, "the second Ctrl-C to end the run", 60)
    assert launcher.wait().code == 130
    wait_until(lambda: not any(rank.is_running() for rank in ranks), "the ranks to end", 60)
    assert summary(run)["status"] == "stopped"
    assert not RunDirectory(run).in_use()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_the_service_and_leaves_nothing(work: Path, tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "flatout"
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    serving = start("serve", "--bytes", "8MB", "--threads", "1", "--json", cwd=work, environment=environment)
    wait_until((place / "shared.sock").exists, "flatout serve")
    serving.send(number)
    ended = serving.wait()
    assert ended.code == 0, ended.err
    assert '"made"' in ended.out
    assert not (place / "shared.sock").exists()


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


FLATOUT = str(Path(sys.executable).with_name("flatout"))
DDP = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False}


def started(work: Path, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
    """The executable, as a shell would start it; `options` are those of Popen."""
    command = [FLATOUT, *map(str, arguments)]
    return subprocess.Popen(command, cwd=work, stdin=subprocess.DEVNULL, start_new_session=True, **options)


@pytest.mark.parametrize("ranks", [{}, DDP], ids=["one process", "launched ranks"])
def test_nohup_stays_in_force(work: Path, shapes: Path, ranks: dict[str, Any]) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, **ranks), work / "runs" / "tiny"
    with (work / "nohup.out").open("wb") as out:
        running = started(
            work, "train", config, stdout=out, stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )  # fmt: skip
        wait_until(lambda: row_count(run) >= 5 or running.poll() is not None, "5 steps")
        os.killpg(running.pid, signal.SIGHUP)
        assert running.wait(DEADLINE_SECONDS) == 0, (work / "nohup.out").read_text()
    assert (summary(run)["status"], summary(run)["attempts"]) == ("completed", 1)


def test_launched_ranks_save_when_the_connection_drops(work: Path, shapes: Path) -> None:
    """The kernel and the shell both say SIGHUP: the second one must not end the wait for the checkpoint."""
    config = write_recipe(work / "tiny.yaml", shapes, **DDP, checkpoint__every_steps=1000)
    run = work / "runs" / "tiny"
    with (work / "said.txt").open("wb") as out:
        running = started(work, "train", config, stdout=out, stderr=out)
        wait_until(lambda: row_count(run) >= 3 or running.poll() is not None, "3 steps")

        while summary(run)["status"] == "running" and running.poll() is None:
            running.send_signal(signal.SIGHUP)
            time.sleep(0.02)
        running.wait(DEADLINE_SECONDS)
    assert running.returncode == 130, (work / "said.txt").read_text()
    assert (summary(run)["status"], summary(run)["cause"]) == ("stopped", "SIGHUP; the same command resumes")
    assert checkpoints(run)[-1].name == f"step-{len(trained(run)):09d}.safetensors"
    assert command("train", config, cwd=work).code == 0
    assert_ledger(run, batch_size=16)


def test_a_suite_passes_a_hangup_on(work: Path, shapes: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes, checkpoint__every_steps=1000)
    (work / "mine.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: a}, {name: b}]\n")
    run = work / "runs" / "mine" / "a"
    running = start("suite", "mine.yaml", cwd=work)
    wait_until(lambda: row_count(run) >= 3 or not running.running, "3 steps")
    running.send(signal.SIGHUP)
    stopped = running.wait()
    assert stopped.code == 130, stopped.err
    assert (summary(run)["status"], summary(run)["cause"]) == ("stopped", "SIGHUP; the same command resumes")
    assert checkpoints(run)[-1].name == f"step-{len(trained(run)):09d}.safetensors"
    assert not (work / "runs/mine/b").exists()


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [("2>&1 | head -1", {}), ("| true", {}), ("--json | true", {}), (">&- 2>&-", {}), ("2>&1 | head -1", DDP)],
    ids=["head", "report", "json", "closed before the start", "launched ranks"],
)
def test_output_that_nobody_reads_ends_nothing(work: Path, shapes: Path, arguments: str, ranks: dict[str, Any]) -> None:
    write_recipe(work / "tiny.yaml", shapes, **ranks)
    line = f"{FLATOUT} train tiny.yaml {arguments}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=work, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    ended = summary(work / "runs" / "tiny")
    assert (done.returncode, ended["status"], ended["cause"]) == (0, "completed", None), done.stderr
    assert (work / "runs/tiny/report.html").exists() or "json" in arguments


@pytest.mark.parametrize("command_name", ["train", "suite"])
def test_a_terminal_that_is_gone_ends_nothing(work: Path, shapes: Path, command_name: str) -> None:
    """Its SIGHUP is ignored or never came; what is written to it fails with EIO, in the midst of the progress bar."""
    write_recipe(work / "tiny.yaml", shapes)
    (work / "mine.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: a}]\n")
    file, run = ("tiny.yaml", "runs/tiny") if command_name == "train" else ("mine.yaml", "runs/mine/a")
    ours, theirs = pty.openpty()
    running = started(work, command_name, file, stdout=theirs, stderr=theirs)
    os.close(theirs)
    wait_until(lambda: row_count(work / run) >= 3 or running.poll() is not None, "3 steps")
    os.close(ours)
    assert running.wait(DEADLINE_SECONDS) == 0
    assert (summary(work / run)["status"], row_count(work / run)) == ("completed", STEPS)
