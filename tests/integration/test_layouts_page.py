"""docs/data-layouts.md as its reader types it."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import layout_files as made
from flatout.data.source.shapes import make_shapes

PAGE = (Path(__file__).parents[2] / "docs/data-layouts.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

(TASK,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page's reader has: pictures, and the same kind of things as others keep them."""
    list(make_shapes(tmp_path / "pictures", 3, 8, 32, 3))
    for path in [*(tmp_path / "pictures").rglob("*")]:
        if path.is_file() and path.suffix != ".jpg":
            path.rename(path.with_suffix(".jpg"))
    names = sorted(each.name for each in (tmp_path / "pictures/train").iterdir())
    for split in ("train", "val"):
        for old, new in zip(names, ("circle", "square", "star"), strict=True):
            (tmp_path / "pictures" / split / old).rename(tmp_path / "pictures" / split / new)
            for number, file in enumerate(sorted((tmp_path / "pictures" / split / new).iterdir())):
                file.rename(file.with_name(f"{number:06d}.jpg"))
    files = made.pictures()
    made.write_files(tmp_path / "imagenet", made.imagenet_downloads(made.imagenet_files(), True, "tar.gz"))
    made.write_files(tmp_path / "mds", made.mds_of(files))
    made.write_parquet(tmp_path / "hub/train.parquet", files, "train")
    (tmp_path / "multi.py").write_text(TASK)
    return tmp_path


def test_every_command_of_the_page(folder: Path) -> None:
    assert len(BLOCKS) >= 6
    home = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_RUNTIME_DIR": str(folder)}
    here = Path(sys.executable).parent
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-e", "-c", block], cwd=folder, capture_output=True, text=True, check=False, timeout=600,
            env={**os.environ, **home, "PATH": f"{here}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    summary = json.loads((folder / "runs/two/summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["data"]["samples_total"] == 16 + 6
    tags = json.loads((folder / "runs/tags/summary.json").read_text())
    assert tags["status"] == "completed"
    (epoch,) = csv.DictReader((folder / "runs/tags/epochs.csv").read_text().splitlines())
    assert 0 <= float(epoch["exact"]) <= 1
    with (folder / "tags.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all({row["class"], row["class_2"], row["class_3"]} == {"edgy", "plain", "round"} for row in rows)
    sums = [sum(float(row[name]) for name in ("probability", "probability_2", "probability_3")) for row in rows]
    assert any(abs(each - 1) > 0.01 for each in sums), "each tag has a probability of its own"
    assert json.loads((folder / "runs/tags/export-onnx/classes.json").read_text()) == ["edgy", "plain", "round"]
    proof = json.loads((folder / "runs/tags/export-onnx/proof.json").read_text())
    assert proof["right"] is None
    assert proof["most_off"] < 1e-3
    assert (folder / "shards/classes.txt").read_text() == "circle\nsquare\nstar\n"
