"""Whoever started a process is killed (-9): the process ends too, at any moment, and the run can go on at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flatout.runs import RunDirectory
from ranks import torchrun
from servers.faults import Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from servers.s3 import S3Server
from training import (
    assert_ledger,
    checkpoints,
    command,
    row_count,
    start,
    summary,
    trained,
    wait_until,
    write_recipe,
)

DDP = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False}
GONE_SECONDS = 60.0  # the promise is 5 s on a machine with time; without a watch, ranks wait for 75 s and more


def launched(work: Path, config: Path) -> "subprocess.Popen[bytes]":
    flatout = Path(sys.executable).with_name("flatout")
    with (work / "said.txt").open("wb") as said:
        return subprocess.Popen([flatout, "train", config], cwd=work, stdout=said, stderr=said, start_new_session=True)


def by_torchrun(work: Path, config: Path) -> "subprocess.Popen[str]":
    return torchrun("train", config, ranks=2, cwd=work)


def ranks_of(launcher: int) -> list[psutil.Process]:
    children = psutil.Process(launcher).children() if psutil.pid_exists(launcher) else []
    return [child for child in children if "flatout" in " ".join(child.cmdline())]


@pytest.mark.parametrize(
    ("launch", "moment"),
    [(launched, "ranks start"), (launched, "lock"), (launched, "step"), (by_torchrun, "ranks start")],
)
def test_ranks_end_with_their_launcher(
    work: Path, shapes: Path, launch: Callable[[Path, Path], "subprocess.Popen[bytes]"], moment: str
) -> None:
    long = {"train__epochs": 500} if moment == "step" else {}  # not over before anybody is gone
    config, run = write_recipe(work / "tiny.yaml", shapes, **DDP, **long), work / "runs" / "tiny"
    launcher = launch(work, config)
    ranks = wait_until(lambda: found if len(found := ranks_of(launcher.pid)) == 2 else None, "two ranks")
    if moment == "lock":
        wait_until((run / "lock").exists, "the lock")
    elif moment == "step":
        wait_until(lambda: row_count(run) >= 2, "two steps")
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    try:
        wait_until(lambda: not any(rank.is_running() for rank in ranks), "the ranks to end", GONE_SECONDS)
    finally:
        for rank in ranks:
            if rank.is_running():
                rank.kill()
    assert not RunDirectory(run).in_use()
    if (run / "summary.json").exists():
        assert summary(run)["status"] == "failed"
        assert " is gone" in summary(run)["cause"], "the launcher, or the store that it kept: who notices first"
    if moment == "lock":
        assert command("train", config, cwd=work).code == 0
        assert_ledger(run, batch_size=16)


def test_an_experiment_saves_and_stops_when_its_suite_is_killed(work: Path, shapes: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes, checkpoint__every_steps=10_000, train__epochs=200)  # not done meanwhile
    (work / "mine.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: a}]\n")
    run = work / "runs" / "mine" / "a"
    suite = start("suite", "mine.yaml", cwd=work)
    wait_until(lambda: row_count(run) >= 3 or not suite.running, "3 steps")
    (child,) = suite.children()
    suite.kill()
    wait_until(lambda: not child.is_running(), "the experiment to end", GONE_SECONDS)
    assert summary(run)["status"] == "stopped"
    assert checkpoints(run)[-1].name == f"step-{len(trained(run)):09d}.safetensors"


def test_workers_end_in_the_midst_of_a_read_that_hangs(
    work: Path, shapes: Path, bucket: Bucket, fault_proxy: FaultProxy, s3_server: S3Server
) -> None:
    """Such a worker does not look at its connection."""
    for path in (path for path in shapes.rglob("*") if path.is_file()):
        bucket.write(str(path.relative_to(shapes)), path.read_bytes())
    config = write_recipe(
        work / "tiny.yaml", shapes, data__path=bucket.url, data__workers=2, data__worker_kind="process",
        data__stage="off", data__cache="off",
    )  # fmt: skip
    environment = {
        "AWS_ENDPOINT_URL": fault_proxy.endpoint, "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key, "AWS_REGION": "us-east-1",
    }  # fmt: skip
    running = start("train", config, cwd=work, environment=environment)
    wait_until(lambda: row_count(work / "runs" / "tiny") >= 1 or not running.running, "a step")
    workers = running.children()
    assert len(workers) >= 2, "and one for validation"
    fault_proxy.rules(Rule("stall", objects_only=True))
    wait_until(lambda: fault_proxy.counts().in_flight >= 2, "reads that hang")
    running.kill()
    wait_until(lambda: not any(worker.is_running() for worker in workers), "the workers to end", GONE_SECONDS)
