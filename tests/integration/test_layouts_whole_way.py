"""Every layout from `init` to an export that a program without flatout runs, as who installed the wheel types it."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import layout_files as made
from wheel import ShippedCommand, built_wheel, pip, shipped_commands

FILES = made.pictures(train=8, val=3)
IMAGENET = made.imagenet_files(train=8, val=6)
FOREIGN = """
import json, sys
sys.modules["flatout"] = sys.modules["torch"] = None        # neither can be imported
folder, *pictures = sys.argv[1:]
sys.path.insert(0, folder)
import numpy as np, onnxruntime, preprocess
rules = preprocess.read_rules(f"{folder}/preprocessing.json")
classes = json.load(open(f"{folder}/classes.json"))
session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
(chances,) = session.run(None, {"pixels": np.stack([preprocess.prepare(each, rules) for each in pictures])})
print(json.dumps([classes[k] for k in chances.argmax(1)]))
"""


def _tar(root: Path, files: Mapping[str, bytes]) -> Path:
    root.mkdir()
    (root / "set.tar").write_bytes(made.tar_of(files))
    return root / "set.tar"


def _jsonl(root: Path) -> Path:
    tables = {f"{split}/metadata.jsonl": made.jsonl_of(FILES, split) for split in ("train", "val")}
    return made.write_files(root, FILES | tables)


def _parquet(root: Path) -> Path:
    for split in ("train", "val"):
        made.write_parquet(root / f"{split}-0.parquet", FILES, split)
    return root


def _imagenet(nested: bool, truth: str) -> Callable[[Path], Path]:
    return lambda root: made.write_files(root, made.imagenet_downloads(IMAGENET, nested, truth))


MAKE: dict[str, Callable[[Path], Path]] = {
    "folder": lambda root: made.write_files(root, FILES),
    "no validation": lambda root: made.write_files(root, {k[6:]: v for k, v in FILES.items() if k[:5] == "train"}),
    "tar": lambda root: _tar(root, FILES),
    "zip": lambda root: made.write_zip(root / "set.zip", FILES),
    "tiny-imagenet zip": lambda root: made.write_zip(root / "tiny.zip", made.tiny_of(FILES), root="tiny-imagenet-200/"),
    "csv": lambda root: made.write_files(root, FILES | {"labels.csv": made.table_of(FILES)}) / "labels.csv",
    "tsv": lambda root: made.write_files(root, FILES | {"labels.tsv": made.table_of(FILES, "\t")}) / "labels.tsv",
    "metadata.jsonl": _jsonl,
    "parquet": _parquet,
    "webdataset": lambda root: made.write_files(root, made.webdataset_of(FILES)),
    "mds": lambda root: made.write_files(root, made.mds_of(FILES)),
    "imagenet, kaggle": _imagenet(True, "kaggle"),
    "imagenet, devkit": _imagenet(False, "devkit"),
}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShippedCommand]:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--target", folder / "site", built_wheel(tmp_path_factory))
    with shipped_commands(folder / "site", folder) as commands:
        yield commands


def said(command: ShippedCommand, work: Path, *words: object) -> dict:
    done = command(*words, "--json", cwd=work)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("layout", MAKE)
def test_init_train_evaluate_classify_export(tmp_path: Path, command: ShippedCommand, layout: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    data = MAKE[layout](tmp_path / "set")
    recipe = said(command, work, "init", data, "--out", "mine.yaml")["recipe"]
    small = [
        word
        for value in ("train.epochs=1", "model.width=0.125", "data.batch_size=8", "threads=1", "device=cpu")
        for word in ("--set", value)
    ]
    done = command("train", recipe, *small, "--run", "runs/mine", cwd=work)
    assert done.code == 0, done.err
    evaluated = said(command, work, "evaluate", "runs/mine", "--out", "page.html")
    assert evaluated["as_training_said"] is True
    pictures = sorted(
        path for path in made.write_files(tmp_path / "apart", FILES).rglob("*.jpg") if "val" in path.parts
    )[:4]
    done = command("classify", "runs/mine", *pictures, cwd=work)
    assert done.code == 0, done.err
    classes = [row["class"] for row in csv.DictReader(done.out.splitlines())]
    assert set(classes) <= set(made.WNIDS if layout.startswith("imagenet") else ("cat", "dog", "eel"))
    said(command, work, "export", "runs/mine", "--to", "onnx", "--out", "exported")
    foreign = [sys.executable, "-c", FOREIGN, "exported", *map(str, pictures)]
    assert json.loads(subprocess.check_output(foreign, cwd=work)) == classes
