"""A folder with pictures that cost too much trains like a clean one: they are quarantined, and memory stays flat."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hostile_pictures import ends_early, flat_png, lying_header, many_scans
from training import installed_command, write_recipe

HOSTILE = {
    "scans.jpg": (many_scans(3000), "3010 scans"),
    "liar.jpg": (lying_header(), "8000 x 8000 pixels"),
    "bomb.png": (flat_png(10_000), "10000 x 10000 pixels"),
    "below.png": (flat_png(5_500, 2), "times the file"),
    "early.jpg": (ends_early(), "premature end"),
    "sparse.jpg": (ends_early(), "has 2.15 GB; a picture has at most 268 MB"),
}


def most_bytes(recipe: Path, run: str) -> int:
    """Of a training command of its own, at its peak."""
    executable = Path(sys.executable).with_name("flatout")
    with subprocess.Popen([executable, "train", recipe, "--run", run], cwd=recipe.parent) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def with_hostile(shapes: Path, to: Path) -> Path:
    shutil.copytree(shapes, to)
    folder = next(path for path in sorted((to / "train").iterdir()) if path.is_dir())
    for name, (data, _) in HOSTILE.items():
        (folder / name).write_bytes(data)
    os.truncate(folder / "sparse.jpg", 2**31)  # takes no room on the disk, and more memory than anybody has to spare
    return to


def test_costly_pictures_are_quarantined_and_take_no_memory(
    tmp_path: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"train__epochs": 1, "data__workers": 2, "data__max_quarantine_share": 0.1}
    clean = most_bytes(write_recipe(tmp_path / "clean.yaml", shapes, **changes), "clean")
    pictures = with_hostile(shapes, tmp_path / "pictures")
    for native in ("1", "0"):
        monkeypatch.setenv("FLATOUT_NATIVE", native)
        hostile = most_bytes(write_recipe(tmp_path / "hostile.yaml", pictures, **changes), f"hostile-{native}")
        with (tmp_path / f"hostile-{native}" / "quarantine.csv").open() as file:
            reasons = {Path(row["name"]).name: row["reason"] for row in csv.DictReader(file)}
        assert reasons.keys() == HOSTILE.keys()
        for name, (_, said) in HOSTILE.items():
            assert said in reasons[name]
        assert hostile - clean < 200e6


def test_the_audit_lists_them(tmp_path: Path, shapes: Path) -> None:
    done = installed_command("data", "audit", with_hostile(shapes, tmp_path / "pictures"), "--json", cwd=tmp_path)
    assert "Traceback" not in done.err
    for name in HOSTILE:
        assert name in done.out
