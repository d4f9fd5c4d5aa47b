"""`flatout record` on real scripts in processes of their own: what they do is theirs, what is known of it is a run."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from flatout.commands.drop_in import with_drop_in
from flatout.commands.explain import explain
from flatout.runs import read_run

FLATOUT = Path(sys.executable).with_name("flatout")
SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((4,), index / 24) + torch.randn(4), index % 2

if __name__ == "__main__":
    mode = sys.argv[1]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(2):
        for x, y in DataLoader(Squares(), 4, shuffle=True, num_workers=1 if mode == "workers" else 0):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if mode == "crash":
            raise ValueError("a bad label")
        if mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    print(mode, [parameter.double().sum().item().hex() for parameter in model.parameters()], os.environ.get("SEEN"))
"""


def record(folder: Path, *command: str, run: str = "run", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FLATOUT), "record", "--run", run, "--", *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_recorded_script_prints_and_computes_what_a_bare_one_does(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own/sitecustomize.py").write_text("import os; os.environ['SEEN'] = 'mine'\n")
    command = (sys.executable, "train.py", "workers")
    bare = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": "own"}, capture_output=True, text=True)
    under = record(folder, *command, PYTHONPATH="own")
    assert (under.returncode, under.stdout) == (0, bare.stdout), under.stderr
    assert bare.stdout.rstrip().endswith("mine")
    run = read_run(folder / "run")
    assert [(step.epoch, step.batch_index, step.samples) for step in run.steps] == [
        (epoch, index, 4) for epoch in range(2) for index in range(6)
    ]
    time = run.summary["time"]
    assert sum(time["parts"].values()) == pytest.approx(time["wall_seconds"], rel=1e-3)
    assert run.summary["recorded"]["loader"]["num_workers"] == 1
    assert run.summary["recorded"]["missing"] == []
    assert sum(run.summary["data"][f"{stage}_seconds"] for stage in ("fetch", "augment", "collate")) > 0
    assert explain(run).cause
    assert not any(finding.fix.changes for finding in explain(run).findings)


def test_a_crash_and_a_kill_leave_a_run_with_the_cause(folder: Path) -> None:
    crashed = record(folder, sys.executable, "-m", "train", "crash")
    assert (crashed.returncode, "ValueError: a bad label" in crashed.stderr) == (1, True)
    run = read_run(folder / "run")
    assert (run.status, len(run.steps)) == ("failed", 6)
    assert run.summary["cause"].startswith("ValueError: a bad label (")
    assert "train.py:" in run.summary["cause"]
    killed = record(folder, sys.executable, "train.py", "kill", run="killed")
    assert killed.returncode == -signal.SIGKILL
    run = read_run(folder / "killed")
    assert (run.status, len(run.steps) >= 5) == ("failed", True)
    assert run.summary["cause"].startswith("the command ended with signal SIGKILL after step")


def test_two_ranks_are_one_run(folder: Path) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    under = record(folder, torchrun, "--standalone", "--nproc-per-node", "2", "train.py", "ranks")
    assert under.returncode == 0, under.stderr
    run = read_run(folder / "run")
    assert (run.summary["world_size"], len(run.steps)) == (2, 12)
    assert {step.samples for step in run.steps} == {8}
    assert run.summary["time"]["parts"]["communication"] > 0
    assert (folder / "run/spans/rank1.jsonl").exists()
    assert explain(run).cause


def test_what_is_no_training_keeps_its_exit_code_and_is_a_run_all_the_same(tmp_path: Path) -> None:
    done = record(tmp_path, "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout) == (3, "hello\n")
    run = read_run(tmp_path / "run")
    assert (run.status, run.steps) == ("failed", [])
    assert "no optimizer step was seen" in run.summary["recorded"]["missing"][0]
    again = record(tmp_path, "true")
    assert (again.returncode, "holds a run already" in again.stderr) == (2, True)
    absent = record(tmp_path, "./no-such-program", run="absent")
    assert (absent.returncode, absent.stderr.count("\n")) == (2, 1)
    assert "cannot start './no-such-program'" in absent.stderr


IMAGES = """
import os, time
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

class ImageFolder:  # as torchvision's
    def __init__(self, root):
        self.root = root
        self.samples = [(os.path.join(root, kind, name), number)
            for number, kind in enumerate(sorted(os.listdir(root))) for name in sorted(os.listdir(os.path.join(root, kind)))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        time.sleep(0.02)
        pixels = torch.frombuffer(bytearray(Image.open(path).convert("RGB").tobytes()), dtype=torch.uint8)
        return pixels.reshape(3, 32, 32).float(), label

model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 2))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for epoch in range(3):
    for x, y in DataLoader(ImageFolder(os.path.abspath("pictures")), 4):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_a_script_that_waits_for_an_image_folder_hears_what_our_loader_gives_of_it(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (32, 32), (number, 80, 90)).save(tmp_path / "pictures" / kind / f"{number}.jpg")
    (tmp_path / "train.py").write_text(IMAGES)
    assert record(tmp_path, sys.executable, "train.py").returncode == 0
    run = read_run(tmp_path / "run")
    assert run.summary["recorded"]["loader"]["shape"] == [4, 3, 32, 32]
    told = with_drop_in(run, replace(explain(run), cause="data-workers"))
    assert "flatout.open_batches(" in told.verdict
    assert "times as many" in next(each for each in told.findings if each.cause == "data-workers").evidence[-1]
    healthy = replace(explain(run), cause="compute")
    assert with_drop_in(run, healthy) is healthy


FORKED = """
import multiprocessing, sys
import torch
from torch import nn

def train(fails):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(40):
        model(torch.ones(6, 4)).mean().backward()
        optimizer.step()
    if fails:
        raise ValueError("a bad label")

child = multiprocessing.get_context("fork").Process(target=train, args=(sys.argv[1] == "fails",))
child.start()
child.join()
sys.exit(child.exitcode)
"""


def test_a_child_that_trains_is_told_to_its_end_and_with_its_error(tmp_path: Path) -> None:
    """multiprocessing ends its children without atexit."""
    (tmp_path / "train.py").write_text(FORKED)
    assert record(tmp_path, sys.executable, "train.py", "works").returncode == 0
    run = read_run(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("completed", 40)
    assert record(tmp_path, sys.executable, "train.py", "fails", run="failed").returncode == 1
    failed = read_run(tmp_path / "failed")
    assert (failed.status, len(failed.steps)) == ("failed", 40)
    assert failed.summary["cause"].startswith("ValueError: a bad label (")
