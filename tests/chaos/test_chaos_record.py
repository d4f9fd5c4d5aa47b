"""Recorded ranks under torchrun that are killed at some step: one run that can be read, and says what happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.commands.explain import explain
from flatout.recording.files import FOLDER
from flatout.runs import read_run

FLATOUT, TORCHRUN = (Path(sys.executable).with_name(name) for name in ("flatout", "torchrun"))
SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

victim, at = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
step = 0
while True:
    for x, y in DataLoader(TensorDataset(torch.randn(40, 4), torch.zeros(40, dtype=torch.long)), 4):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == at and torch.distributed.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def start(folder: Path, ranks: int, victim: int, at: int) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(SCRIPT)
    launcher = [str(TORCHRUN), "--standalone", "--nproc-per-node", str(ranks), "train.py", str(victim), str(at)]
    return subprocess.Popen(
        [str(FLATOUT), "record", "--run", "run", "--", *launcher],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_is_killed(tmp_path: Path, ranks: int) -> None:
    chance = random.Random(ranks)
    at = chance.randint(5, 60)
    victim = chance.randrange(ranks)
    assert start(tmp_path, ranks, victim, at).wait(240) == 1  # as torchrun itself ends
    run = read_run(tmp_path / "run")
    assert (run.status, run.summary["world_size"]) == ("failed", ranks)
    assert run.summary["cause"].startswith(f"rank {victim} ended with SIGKILL; exit code 1 after step")
    # the first twenty are written at once, later ones four times a second; the newest is told by the one after it
    assert min(at, 20) - 2 <= len(run.steps) <= at + 1
    assert {step.samples for step in run.steps[: min(at, 20) - 2]} == {4 * ranks}
    times = run.summary["time"]
    assert sum(times["parts"].values()) == pytest.approx(times["wall_seconds"], rel=1e-3)
    assert explain(run).findings[0].id == "failed"


def test_everything_is_killed_at_once_the_recorder_too(tmp_path: Path) -> None:
    process, deadline = start(tmp_path, 2, 0, 10**9), time.monotonic() + 240
    told = tmp_path / "run" / FOLDER / "rank1.jsonl"
    while not (told.exists() and '"step"' in told.read_text()):  # until both ranks train
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # torchrun's ranks are of sessions of their own: the next lines are for them
    for claim in (tmp_path / "run" / FOLDER).glob("rank*.claim"):
        os.kill(int(claim.read_text()), signal.SIGKILL)
    process.wait()
    run = read_run(tmp_path / "run")
    assert run.status != "completed"
    assert explain(run).verdict
