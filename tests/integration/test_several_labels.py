"""The task of docs/data-layouts.md, with what it meets: ranks, shared batches, kill -9, an evaluation by ranks."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import layout_files as made
from flatout.service.transport.paths import service_paths
from training import assert_same_training, command, row_count, start, summary, wait_until, write_recipe

PAGE = (Path(__file__).parents[2] / "docs/data-layouts.md").read_text()
TAGS = {"cat": "furry;small", "dog": "furry", "eel": "wet"}
TASK = {
    "task": "./multi.py:open_multi",
    "data__label_column": "labels",
    "data__batch_size": 4,
    "checkpoint__metric": "exact",
    "parallel__mode": "ddp",
    "parallel__devices": 2,
    "parallel__preflight": False,
}


@pytest.fixture
def table(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (task,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (work / "multi.py").write_text(task)
    files = made.pictures(train=16, val=4)
    rows = "".join(f"{name},{TAGS[name.split('/')[1]]},{name.split('/')[0]}\n" for name in files)
    yield (
        made.write_files(tmp_path / "set", files | {"labels.csv": f"path,labels,split\n{rows}".encode()}) / "labels.csv"
    )
    wait_until(lambda: not service_paths().socket.exists(), "the service to end", 60)


def test_ranks_shared_batches_and_a_kill_then_what_comes_after_training(
    table: Path, work: Path, tmp_path: Path
) -> None:
    place = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert command("train", write_recipe(work / "alone.yaml", table, **TASK), "--run", "alone", cwd=work).code == 0
    shared = write_recipe(work / "shared.yaml", table, **TASK, data__shared="auto")
    running = start("train", shared, "--run", "shared", cwd=work, environment=place)
    wait_until(lambda: row_count(work / "shared") >= 7 or not running.running, "7 steps")
    running.kill()
    done = command("train", shared, "--run", "shared", cwd=work, environment=place)
    assert done.code == 0, done.err
    assert_same_training(work / "shared", work / "alone")
    assert summary(work / "shared")["shared"]["hits"] > 0
    for ranks in (1, 2):
        found = json.loads(command("evaluate", "shared", "--json", "--ranks", ranks, cwd=work).out)
        assert found["as_training_said"] is True
        assert set(found["metrics"]) == {"exact", "val_loss"}
    said = command("classify", "shared", table.parent / "val", cwd=work).out
    for row in csv.DictReader(io.StringIO(said)):
        assert {row["class"], row["class_2"], row["class_3"]} == {"furry", "small", "wet"}


def test_a_metric_that_the_task_does_not_have_is_said(table: Path, work: Path) -> None:
    alone = {key: value for key, value in TASK.items() if not key.startswith("parallel")}
    recipe = write_recipe(work / "tiny.yaml", table, **alone | {"checkpoint__metric": "top1"})
    done = command("train", recipe, "--run", "out", cwd=work)
    assert done.code == 2
    assert "checkpoint.metric is top1, but ./multi.py:open_multi gives exact, val_loss, train_loss" in done.last_line
