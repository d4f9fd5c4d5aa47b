"""`flatout data audit` and `flatout bench loader` as a user runs them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.commands.bench_loader import limiting
from flatout.data.source.shapes import make_shapes

PROGRAM = [sys.executable, "-c", "import sys; from flatout.cli.main import run; sys.exit(run())"]


def flatout(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120, check=False, cwd=cwd
    )


def answered(*words: str | Path) -> dict[str, Any]:
    done = flatout(*words, "--json")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    for _ in make_shapes(folder, 3, 20, 32):
        pass
    return folder


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    for _ in make_shapes(tmp_path / "set", 3, 12, 32):
        pass
    root = tmp_path / "set"
    (root / "train" / "0-circle" / "empty.jpg").touch()
    (root / "train" / "0-circle" / "cut.jpg").write_bytes(
        (root / "train" / "0-circle" / "00000.jpg").read_bytes()[:300]
    )
    (root / "train" / "1-square" / "twin.jpg").write_bytes((root / "train" / "0-circle" / "00001.jpg").read_bytes())
    (root / "val" / "2-triangle" / "seen.jpg").write_bytes((root / "train" / "2-triangle" / "00002.jpg").read_bytes())
    (root / "train" / "<script>alert(1)<").mkdir()
    return root


PLANTED = {"empty-file", "undecodable", "label-conflict", "leak", "empty-class"}


def test_a_clean_dataset_passes(clean: Path) -> None:
    done = flatout("data", "audit", clean)
    assert done.returncode == 0, done.stderr
    assert "no problems" in done.stdout
    assert "60 samples, 3 classes" in done.stdout


def test_problems_are_named_and_end_in_exit_code_1(planted: Path) -> None:
    done = flatout("data", "audit", planted, "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert {finding["id"] for finding in result["findings"] if finding["severity"] == "problem"} == PLANTED
    assert result["problems"] == len(PLANTED)
    shown = flatout("data", "audit", planted)
    assert shown.returncode == 1
    assert all(f"[{finding}]" in shown.stdout for finding in PLANTED)
    assert "Traceback" not in shown.stderr


def test_the_page_is_one_file_that_asks_for_nothing(planted: Path) -> None:
    page = planted.parent / "audit.html"
    result = answered("data", "audit", planted, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert result["html"] == str(page)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert "default-src 'none'" in text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert [each[:40] for each in addresses if not each.startswith(("data:", "#"))] == []
    assert text.count("<img") >= 4  # both pairs side by side


def test_no_page_unless_asked_for(clean: Path, tmp_path: Path) -> None:
    assert flatout("data", "audit", clean, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_quick_look_says_that_it_was_one(clean: Path) -> None:
    result = answered("data", "audit", clean, "--limit", "2")
    assert (result["looked_at"], result["samples"], result["limit"]) == (12, 72, 2)


@pytest.mark.parametrize("words", [("data", "audit"), ("bench", "loader")])
def test_no_dataset_is_one_line_and_exit_code_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = flatout(*words, tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "does not exist" in done.stderr


def test_the_staircase(clean: Path) -> None:
    result = answered("bench", "loader", clean, "--view", "train-64", "--batch-size", "16", "--workers", "2",
                      "--seconds", "0.2")  # fmt: skip
    stages = {stage["name"]: stage for stage in result["stages"]}
    assert list(stages)[:4] == ["read", "decode", "augment", "loader"]
    assert all(stage["low"] <= stage["images_per_second"] <= stage["high"] for stage in stages.values())
    assert [stage["threads"] for stage in result["stages"]][:4] == [1, 1, 1, 2]
    assert sum(result["inside_a_batch"].values()) == pytest.approx(1)
    assert result["limit"]["cause"] in ("host", "data-fetch", "data-decode", "data-augment")
    assert result["limit"]["sentence"].endswith(".")
    if result["worker_kind"] == "thread":
        assert "cached" in stages


SHARES = {"fetch": 0.1, "decode": 0.7, "augment": 0.2}


def test_the_limit_is_the_largest_part_of_a_batch() -> None:
    cause, sentence = limiting({"augment": 1000, "loader": 1900}, SHARES, workers=2, cores=4)
    assert cause == "data-decode"
    assert sentence.startswith("Decoding limits: it takes 70 % of the work on a batch (reading 10 %, augmenting 20 %)")
    assert "2 of 4 cores are still free" in sentence
    assert limiting({"augment": 1000, "loader": 1000}, {**SHARES, "fetch": 0.8}, 0, 1)[0] == "data-fetch"


def test_workers_that_do_not_scale_are_the_limit() -> None:
    cause, sentence = limiting({"augment": 1000, "loader": 1200}, SHARES, workers=2, cores=2)
    assert (cause, sentence.split(":")[0]) == ("host", "The workers limit each other")
    cause, sentence = limiting({"augment": 1000, "loader": 1200}, SHARES, 2, 2, busy_elsewhere=1.5)
    assert "other processes kept 1.5 of 2 cores busy" in sentence
    assert limiting({"augment": 1000, "loader": 1900}, SHARES, workers=8, cores=2)[0] == "data-decode"


def test_a_batch_larger_than_the_dataset_is_cut_and_said(clean: Path) -> None:
    done = flatout("bench", "loader", clean, "--view", "raw", "--workers", "0", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "batch size 60, not 256" in " ".join(done.stdout.split())
    assert "decoder" in done.stdout


def test_a_dataset_without_one_usable_sample(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "x.jpg").write_bytes(b"text")
        (tmp_path / "train" / name / "y.jpg").write_bytes(b"more text")
    done = flatout("bench", "loader", tmp_path, "--seconds", "0.1")
    assert done.returncode == 2
    assert "flatout data audit" in done.stderr


def test_help_teaches() -> None:
    for words in (("data", "audit"), ("bench", "loader")):
        done = flatout(*words, "--help")
        assert done.returncode == 0
        assert "Examples:" in done.stdout
    assert "bench" in flatout("--help").stdout
