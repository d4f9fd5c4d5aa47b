"""What goes wrong outside of flatout in mid-run: the device's memory, credentials, the network, the clock."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from flatout.runs.tables import read_table
from namespaces import island, why_not
from servers.faults import Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from servers.s3 import ACCESS_KEY, SECRET_KEY
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

FLATOUT = str(Path(sys.executable).with_name("flatout"))


def _train_until_the_device_is_full(config: str, folder: str, steps: int) -> None:
    """The allocator of a device says no as torch passes it on; nothing else is replaced."""
    import torch

    from flatout.cli.main import run

    backward, calls = torch.Tensor.backward, iter(range(10**9))

    def full(tensor: torch.Tensor, *arguments: object, **named: object) -> None:
        if next(calls) >= steps:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 15.77 GiB\nmore")
        backward(tensor, *arguments, **named)

    torch.Tensor.backward = full  # type: ignore[assignment]
    os.chdir(folder)
    sys.stderr = open("said.txt", "w")  # noqa: SIM115
    sys.argv = ["flatout", "train", config]
    run()


def test_a_device_out_of_memory_suggests_a_batch_size(work: Path, shapes: Path, uninterrupted: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes), work / "runs" / "tiny"
    with forked(_train_until_the_device_is_full, str(config), str(work), 7) as training:
        training.join(DEADLINE_SECONDS)
        assert training.exitcode == 1
    last = (work / "said.txt").read_text().splitlines()[-1]
    assert "the device ran out of memory with data.batch_size = 8: CUDA out of memory. Tried" in last
    assert "try data.batch_size=4" in last
    assert summary(run)["status"] == "failed"
    assert "data.batch_size=4" in summary(run)["cause"]
    assert command("train", config, cwd=work).code == 0, "on a device that is free again"
    assert_same_training(run, uninterrupted)


def test_credentials_that_expire_in_mid_training(
    work: Path, shapes: Path, bucket: Bucket, fault_proxy: FaultProxy, uninterrupted: Path
) -> None:
    """Asked for again once; then the step reached is saved, the cause said, and no secret with it."""
    for path in (path for path in shapes.rglob("*") if path.is_file()):
        bucket.write(str(path.relative_to(shapes)), path.read_bytes())
    config, run = write_recipe(
        work / "tiny.yaml", shapes, data__path=bucket.url, data__stage="off", data__cache="off",
        checkpoint__every_steps=1000,
    ), work / "runs" / "tiny"  # fmt: skip
    environment = {
        "AWS_ENDPOINT_URL": fault_proxy.endpoint, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1", "XDG_CACHE_HOME": str(work / "cache"),
    }  # fmt: skip
    running = start("train", config, cwd=work, environment=environment)
    wait_until(lambda: row_count(run) >= 5 or not running.running, "5 steps")
    expired = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    fault_proxy.rules(Rule("answer", status=400, body=expired))
    ended = running.wait()
    assert ended.code == 1, ended.err
    assert "expired" in ended.last_line.lower()
    assert summary(run)["status"] == "failed"
    reached = int(trained(run)[-1][0])
    assert reached >= 5
    assert checkpoints(run)[-1].name == f"step-{reached:09d}.safetensors"
    fault_proxy.clear()
    resumed = command("train", config, cwd=work, environment=environment)
    assert resumed.code == 0, resumed.err
    assert_same_training(run, uninterrupted)
    told = [ended.out, ended.err, resumed.out, resumed.err]
    told += [path.read_bytes().decode("latin-1") for path in work.rglob("*") if path.is_file()]
    for canary in (ACCESS_KEY, SECRET_KEY):
        assert not [text for text in told if canary in text]


@pytest.mark.skipif(why_not() is not None or shutil.which("redis-server") is None, reason="needs namespaces and redis")
def test_packets_dropped_for_a_while(work: Path, shapes: Path, tmp_path: Path, uninterrupted: Path) -> None:
    """Neither the service nor its Redis is down, and no connection is refused: nothing arrives any more."""
    access = {"data__shared": "grpc://127.0.0.1:7070", "data__shared_token": str(tmp_path / "flatout/shared.token")}
    config, run = write_recipe(work / "tiny.yaml", shapes, **access, train__epochs=2), work / "runs" / "tiny"
    runtime, said = {"XDG_RUNTIME_DIR": str(tmp_path)}, work / "said.txt"
    with island() as place:
        others = [place.start("redis-server", "--port", "6379", "--save", "", "--dir", tmp_path, cwd=work)]
        serve = (FLATOUT, "serve", "--listen", "127.0.0.1:7070", "--redis", "redis://127.0.0.1:6379", "--data", shapes)
        others.append(place.start(*serve, "--threads", "1", "--bytes", "8MB", cwd=work, **runtime))
        training = None
        try:
            socket = tmp_path / "flatout/shared.sock"
            wait_until(lambda: socket.exists() or others[-1].poll() is not None, "flatout serve")
            assert others[-1].poll() is None, said.read_text()
            training = place.start(FLATOUT, "train", config, cwd=work, **runtime)
            wait_until(lambda: row_count(run) >= 5 or training.poll() is not None, "5 steps")
            place.drop(True)
            began = row_count(run)
            wait_until(lambda: row_count(run) >= min(STEPS, began + 5) or training.poll() is not None, "steps alone")
            place.drop(False)
            assert training.wait(DEADLINE_SECONDS) == 0, said.read_text()
        finally:
            for process in (training, *others):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
    assert_same_training(run, uninterrupted)
    assert_ledger(run)
    use = summary(run)["shared"]
    assert use["hits"] > 0
    assert use["outages"] >= 1 or use["alone"] + use["local"] > 0, use


CLOCK = """
import os, time
_real, _file = time.time, os.environ["TEST_CLOCK_FILE"]
def _shifted():
    with open(_file) as file:
        return _real() + float(file.read() or 0)
time.time = _shifted
time.time_ns = lambda: int(_shifted() * 1e9)
"""


def test_a_clock_that_is_set_back_and_forth(work: Path, shapes: Path, tmp_path: Path, uninterrupted: Path) -> None:
    """By an hour and more, twice, in the trainer, the service and its producers: durations and leases are monotonic.

    Python's clock is replaced: under Debian's libfaketime (0.9.10) time.sleep of Python 3.11 fails with EINVAL unless
    the monotonic clock is set back too, which no machine does.
    """
    config = write_recipe(work / "tiny.yaml", shapes, data__shared="auto")
    run, clock = work / "runs" / "tiny", tmp_path / "clock"
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    environment = {
        "PYTHONPATH": str(tmp_path), "TEST_CLOCK_FILE": str(clock), "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200",
    }  # fmt: skip

    def set_clock(offset_seconds: int) -> None:
        (tmp_path / "new").write_text(str(offset_seconds))
        os.replace(tmp_path / "new", clock)

    set_clock(0)
    with (work / "said.txt").open("wb") as said:
        training = subprocess.Popen(
            [FLATOUT, "train", config], cwd=work, stdout=said, stderr=said, env={**os.environ, **environment}
        )
        for steps, offset_seconds in ((5, -3700), (15, 7200)):
            wait_until(lambda steps=steps: row_count(run) >= steps or training.poll() is not None, "steps")
            set_clock(offset_seconds)
        assert training.wait(DEADLINE_SECONDS) == 0, (work / "said.txt").read_text()
    assert_same_training(run, uninterrupted)
    assert_ledger(run)
    rows = read_table(run / "steps.csv")
    jumps = [float(after["time_unix"]) - float(before["time_unix"]) for before, after in pairwise(rows)]
    assert min(jumps) < -3000
    assert max(jumps) > 7000
    assert all(0 < float(row["step_seconds"]) < 600 for row in rows)
    assert summary(run)["time"]["wall_seconds"] < 3000
