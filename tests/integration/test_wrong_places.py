"""Files that are not what a recipe or a command takes them for: one line with what to do, exit 2, nothing written."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import layout_files as made
from flatout.config.schema import DataConfig
from flatout.data.source.dataset import open_dataset
from flatout.tasks.classification.resnet import resnet
from training import command, snapshot, write_recipe

FILES = made.pictures(train=8, val=3)
ROWS = "".join(f"{name},{name.split('/')[1]}\n" for name in FILES)


def _tensors(classes: int = 4) -> dict[str, torch.Tensor]:
    return resnet("resnet18", classes, "small", 0.125).state_dict()


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _saved(value: object) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.save(value, folder / "w.pth")
        return folder / "w.pth"

    return write


def _bytes(data: bytes, name: str = "w.pth") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


WEIGHTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a number": (_saved(5), "holds a int, and no weights"),
    "a list": (_saved([torch.zeros(2)]), "holds a list, and no weights"),
    "one tensor": (_saved(torch.zeros(3)), "holds a Tensor, and no weights"),
    "nothing": (_saved({}), "holds nothing, and no weights"),
    "no tensors": (_saved({"epoch": 3}), "holds epoch, and no weights"),
    "a module": (_saved(torch.nn.Linear(2, 2)), "would run code that is in it"),
    "a text": (_bytes(b"hello"), "is not a readable torch file"),
    "an empty file": (_bytes(b""), "is not a readable torch file"),
    "text as safetensors": (_bytes(b"hello", "w.safetensors"), "is not a readable safetensors file"),
    "another model": (_saved(resnet("resnet18", 4, "small", 0.25).state_dict()), "fits the model in 1 of 102 tensors"),
    "strangers": (_saved({"a": torch.zeros(2)}), "does not have it, but has 'a'"),
    "a diverged training": (
        _saved({k: v * torch.nan if v.is_floating_point() else v for k, v in _tensors().items()}),
        "has values in 'conv1.weight' that are not finite",
    ),
    "a folder": (lambda folder: folder, "are a folder; write run:"),
}


@pytest.mark.parametrize("what", WEIGHTS)
def test_weights_that_are_none(tmp_path: Path, shapes: Path, work: Path, what: str) -> None:
    make, said = WEIGHTS[what]
    recipe = write_recipe(work / "tiny.yaml", shapes, model__weights=str(make(tmp_path)))
    before = snapshot(work)
    done = command("train", recipe, "--run", "out", cwd=work)
    assert (done.code, said in done.error_line) == (2, True), done.err
    assert snapshot(work) == before


def _table(text: str) -> Callable[[Path], Path]:
    return lambda root: made.write_files(root, FILES | {"labels.csv": text.encode()}) / "labels.csv"


def _damaged_parquet(root: Path) -> Path:
    made.write_parquet(root / "train.parquet", FILES, "train")
    data = bytearray((root / "train.parquet").read_bytes())
    data[2000:3000] = b"\xff" * 1000
    (root / "train.parquet").write_bytes(bytes(data))
    return root


def _without(files: dict[str, bytes], part: str) -> Callable[[Path], Path]:
    return lambda root: made.write_files(root, {name: data for name, data in files.items() if part not in name})


MDS, IMAGENET = made.mds_of(FILES), made.imagenet_downloads(made.imagenet_files(), True, "kaggle")
DATA: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no column of the file": (_table("what,label\n" + ROWS), "none of the file: call it path"),
    "no column of the label": (_table("path,what\n" + ROWS), "none of the label: call it label"),
    "no header": (_table(ROWS), "the first line must be the header"),
    "a file that is not there": (_table("path,label\nnope.jpg,cat\n" + ROWS), "line 2 names 'nope.jpg'"),
    "a file elsewhere": (_table("path,label\n/etc/passwd,cat\n" + ROWS), "put the table into a folder above the files"),
    "a file twice": (_table("path,label\n" + ROWS + ROWS), "a second time (first in line 2)"),
    "no label": (_table("path,label\ntrain/cat/t0.jpg,\n" + ROWS), "line 2 has no label"),
    "nothing to train on": (
        _table("path,label,split\n" + ROWS.replace("\n", ",val\n")),
        "names no training samples; give some the split train",
    ),
    "no parquet": (lambda root: made.write_files(root, {"a.parquet": b"PAR1 no"}), "cannot be read as parquet"),
    "damaged parquet": (_damaged_parquet, "cannot be read as parquet"),
    "no tar": (lambda root: made.write_files(root, {"a.tar": b"nothing" * 200}) / "a.tar", "is not a tar"),
    "a shard that is none": (lambda root: made.write_files(root, {"a.tar": b"nothing" * 200}), "is not a tar"),
    "half a zip": (
        lambda root: made.write_files(root, {"a.zip": _cut(made.write_zip(root / "b.zip", FILES).read_bytes())}) / "a.zip",
        "is not a zip, or its end is missing",
    ),
    "no shard": (_without(MDS, "train/shard"), "train/shard.00000.mds"),
    "no truth": (_without(IMAGENET, "LOC_val"), "has validation images but not their classes"),
}  # fmt: skip


@pytest.mark.parametrize("what", DATA)
def test_data_that_cannot_be_used(tmp_path: Path, work: Path, what: str) -> None:
    make, said = DATA[what]
    path = make(tmp_path / "set")
    recipe = write_recipe(work / "tiny.yaml", path)
    before = snapshot(work)
    for words in (("train", recipe, "--run", "out"), ("init", path, "--out", "first.yaml")):
        done = command(*words, cwd=work)
        assert (done.code, said in done.error_line) == (2, True), done.err
    assert snapshot(work) == before


def test_a_table_may_name_files_by_their_whole_path(tmp_path: Path) -> None:
    root = tmp_path / "set"
    rows = "".join(f"{root / name},{name.split('/')[1]},{name.split('/')[0]}\n" for name in FILES)
    _table("path,label,split\n" + rows)(root)
    made.write_files(tmp_path / "plain", FILES)
    paths = (root / "labels.csv", root, tmp_path / "plain")
    assert len({open_dataset(DataConfig(path=str(each))).fingerprint for each in paths}) == 1


@pytest.mark.parametrize(
    ("weights", "said"),
    [({"cat": -1}, "data.class_weights is -1: input should be greater than"), ([1], "data.class_weights is [1]")],
)
def test_what_is_said_of_a_value_is_about_the_kind_it_nearly_is(
    shapes: Path, work: Path, weights: object, said: str
) -> None:
    recipe = write_recipe(work / "tiny.yaml", shapes, data__class_weights=weights)
    done = command("train", recipe, "--run", "out", cwd=work)
    assert (done.code, said in done.error_line) == (2, True), done.err
