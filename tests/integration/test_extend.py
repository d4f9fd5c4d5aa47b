"""docs/extend.md as its reader uses it: flatout from a wheel, the page's files in a folder of their own."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flatout.data.source.shapes import make_shapes
from wheel import ROOT, built_wheel, pip

PAGE = (ROOT / "docs/extend.md").read_text()
FILES = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """flatout's wheel and the page's package, installed to a folder that comes before this repository's sources."""
    folder = tmp_path_factory.mktemp("site")
    write_files(folder)
    pip("install", "--target", folder / "site", built_wheel(tmp_path_factory), folder / "extras")
    return folder / "site"


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, and pictures whose class is the beginning of their name."""
    write_files(tmp_path)
    for _ in make_shapes(tmp_path / "shapes", 3, 24, 16, 0):
        pass
    (tmp_path / "pictures").mkdir()
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        for path in sorted((tmp_path / "shapes").rglob("*.jpg")):
            name = f"{path.parent.name}_{path.name}"
            archive.write(path.rename(tmp_path / "pictures" / name), name)
    return tmp_path


def flatout(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "FLATOUT_NATIVE": "1"}
    command = [sys.executable, "-c", "from flatout.cli.main import run; run()", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def train(site: Path, folder: Path, run: str, *changes: str) -> dict[str, Any]:
    options = [word for change in changes for word in ("--set", change)]
    done = flatout(site, folder, "train", "mine.yaml", *options, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def losses(folder: Path, run: str) -> list[str]:
    rows = (folder / run / "steps.csv").read_text().splitlines()
    column = rows[0].split(",").index("loss")
    return [row.split(",")[column] for row in rows[1:]]


def test_the_code_comes_from_the_wheel(site: Path, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = "import flatout; print(flatout.__file__)"
    said = subprocess.run([sys.executable, "-c", where], cwd=folder, env=environment, capture_output=True, text=True)
    assert Path(said.stdout.strip()).is_relative_to(site)


def test_a_model_a_layout_a_transform_and_a_tracker(site: Path, folder: Path) -> None:
    summary = train(site, folder, "runs/mine")
    assert summary["status"] == "completed"
    assert summary["data"]["samples_total"] == 72  # 24 of each class, some of them held out
    lines = [json.loads(line) for line in (folder / "runs/mine/lines.jsonl").read_text().splitlines()]
    assert lines[-1] == {"status": "completed"}
    assert any("val/top1" in line for line in lines)
    # the same batches, whoever makes them: in this thread, or in a process that loads the transform anew
    train(site, folder, "runs/here", "data.workers=0")
    train(site, folder, "runs/process", "data.worker_kind=process")
    assert losses(folder, "runs/mine") == losses(folder, "runs/here") == losses(folder, "runs/process")


def test_a_loss_a_metric_an_optimizer_and_a_schedule(site: Path, folder: Path) -> None:
    done = flatout(site, folder, "train", "parts.yaml", "--json")
    assert done.returncode == 0, done.stderr
    header, *rows = [line.split(",") for line in (folder / "runs/parts/epochs.csv").read_text().splitlines()]
    assert all(0 < float(row[header.index("confidence")]) < 1 for row in rows)
    assert json.loads(done.stdout)["optimizer"]["name"] == "torch.optim:RMSprop"


def test_two_ranks_load_the_same_code(site: Path, folder: Path) -> None:
    ranks = ("parallel.mode=ddp", "parallel.devices=2", "data.batch_size=8", "parallel.preflight=false")
    assert train(site, folder, "runs/ranks", *ranks)["world_size"] == 2


def test_a_task_of_ones_own(site: Path, folder: Path) -> None:
    train(site, folder, "runs/mine")
    assert train(site, folder, "runs/focal", "task=./focal.py:open_focal")["status"] == "completed"
    assert float(losses(folder, "runs/focal")[0]) < float(losses(folder, "runs/mine")[0])  # weighted by less than 1


def test_a_store_and_a_rule_of_an_installed_package(site: Path, folder: Path) -> None:
    zipped = train(site, folder, "runs/zipped", "data.path=zip://pictures.zip")
    assert zipped["status"] == "completed"
    train(site, folder, "runs/mine")
    assert losses(folder, "runs/zipped") == losses(folder, "runs/mine")
    explained = flatout(site, folder, "explain", "runs/zipped", "--json")
    assert explained.returncode == 0, explained.stderr
    found = {each["id"]: each for each in json.loads(explained.stdout)["findings"]}
    assert found["short-run"]["fix"]["changes"] == {"train.epochs": 100}


def test_code_of_ones_own_and_shared_batches_are_refused_in_one_line(site: Path, folder: Path) -> None:
    done = flatout(site, folder, "train", "mine.yaml", "--set", "data.shared=auto")
    assert done.returncode == 2
    assert "cannot be shared" in done.stderr
    assert "./by_name.py:find" in done.stderr


CHAIN = """
import json, sys
from flatout.cli.main import run

def flatout(*words):
    sys.argv = ["flatout", *words]
    assert not run(), words

flatout("recipes", "show", "imagenet-resnet18-g5")
flatout("init", "folders")
flatout("train", "folders.yaml", "--set", "train.max_steps=2", "--set", "model.width=0.125", "--json")
flatout("train", "mine.yaml", "--set", "train.max_steps=2", "--json")
for name in ("folders", "mine"):
    flatout("evaluate", f"runs/{name}", "--out", f"{name}.html", "--json")
    flatout("classify", f"runs/{name}", "pictures", "--out", f"{name}.csv")
    flatout("export", f"runs/{name}", "--to", "torch", "--out", f"{name}-torch")
"""


def test_from_a_wheel_init_train_evaluate_classify_and_export_follow_each_other(site: Path, folder: Path) -> None:
    """For data in folders, and for a model and a layout of the user's own."""
    for _ in make_shapes(folder / "folders", 3, 24, 16, 4):
        pass
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", CHAIN], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "trackers: [wandb]" in done.stdout
    for name in ("folders", "mine"):
        assert (folder / f"{name}.html").exists()
        assert len((folder / f"{name}.csv").read_text().splitlines()) == 73
        proof = json.loads((folder / f"{name}-torch/proof.json").read_text())
        assert proof["right"] == proof["exported_right"]
