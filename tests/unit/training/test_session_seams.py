"""The parts of a session, each by itself; and that they ask each other instead of looking at types."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flatout
from flatout.commands import train
from flatout.config.loading import load_config
from flatout.engine import checkpoint
from flatout.engine.parallel import SingleProcess
from flatout.engine.progress import Progress
from flatout.errors import NoSpace, RunFailed
from flatout.runs import RunDirectory
from flatout.training.display import Display, RunLog
from flatout.training.recording import RunRecords
from flatout.training.records import OtherRankRecords
from flatout.training.resuming import Resumed, broadcast_resume_point
from flatout.training.saving import MAX_FAILED_SAVES, Saving
from flatout.training.session import _epoch_line

ROOMS = [Path(flatout.__file__).parent / room for room in ("training", "engine", "tasks")]
FILES = [path for room in ROOMS for path in room.rglob("*.py")]


def test_nobody_looks_at_the_type_of_ranks_records_or_loaders() -> None:
    sniffs = re.compile(r"isinstance\([^)]*\b(SingleProcess|Ranks|RunRecords|OtherRankRecords|Loader)\b")
    assert [str(path) for path in FILES if sniffs.search(path.read_text(encoding="utf-8"))] == []


def test_files_and_classes_stay_small() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, path
        assert "fmt: skip" not in text, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef) for each in node.body)
                assert methods <= 20, (path, node.name)


def test_other_ranks_records_answer_whatever_rank_0s_do() -> None:
    public = {name for name in vars(RunRecords) if not name.startswith("_")}
    assert {name for name in public if not hasattr(OtherRankRecords, name)} == set()


def test_the_module_that_ranks_are_started_with_exists() -> None:
    assert find_spec(train._RANK_MODULE) is not None


def test_a_process_without_others_keeps_its_own_resume_point() -> None:
    found = Resumed(Progress(step=3), {"weight": torch.zeros(1)}, {"scale": 2.0})
    assert broadcast_resume_point(found, SingleProcess()) is found


class TwoRanks(SingleProcess):
    """The second of two, where rank 0 said `head` and `tensors`."""

    rank, world_size = 1, 2

    def __init__(self, head: list[Any], tensors: dict[str, torch.Tensor]) -> None:
        self.group = SimpleNamespace(from_main=lambda _: head, tensors_from_main=lambda _: tensors)  # type: ignore[assignment]


def test_another_rank_gets_rank_0s_resume_point() -> None:
    tensors = {"weight": torch.ones(2)}
    resumed = broadcast_resume_point(None, TwoRanks([vars(Progress(step=7)), {"scale": 2.0}, True], tensors))
    assert (resumed.progress.step, resumed.precision, resumed.tensors) == (7, {"scale": 2.0}, tensors)
    begins = broadcast_resume_point(None, TwoRanks([vars(Progress()), {}, False], tensors))
    assert (begins.progress.step, begins.tensors) == (0, None)


def saving(folder: Path, said: list[str]) -> Saving:
    """Of a run of nothing, as far as a checkpoint asks for it."""
    dataset = SimpleNamespace(fingerprint="f", train=range(4), classes=("a", "b"))
    setup: Any = SimpleNamespace(
        config=load_config({}).config, dataset=dataset, opened=SimpleNamespace(global_batch=2, files={})
    )
    learner: Any = SimpleNamespace(precision=SimpleNamespace(scalars=dict))
    other: Any = SimpleNamespace(attempt=1, save=lambda: None, write=lambda: None)
    return Saving(setup, learner, RunDirectory(folder), SingleProcess(), other, other, other, other, said.append, {})


def test_a_full_disk_is_a_warning_until_it_was_full_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    saves = saving(tmp_path / "run", said)

    def full(*_: Any) -> None:
        raise NoSpace("no room")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        saves.write({}, Progress(step=1))
    assert (saves.failed_saves, said) == (1, ["WARNING: no room"])
    saves.write({"weight": torch.zeros(2)}, Progress(step=2))
    assert saves.failed_saves == 0
    monkeypatch.setattr(checkpoint, "save", full)
    for step in range(3, 2 + MAX_FAILED_SAVES):
        saves.write({}, Progress(step=step))
    with pytest.raises(RunFailed, match="3 checkpoints in a row could not be written: no room"):
        saves.write({}, Progress(step=9))


def test_only_rank_0_writes_the_log(tmp_path: Path) -> None:
    for rank in (0, 1):
        RunLog(Display(quiet=True), RunDirectory(tmp_path), writes=rank == 0).say(f"rank {rank}")
    assert (tmp_path / "log.txt").read_text() == "rank 0\n"


def test_the_line_of_an_epoch() -> None:
    line = _epoch_line(0, 3, 1.23456, {"top1": 0.5, "val_loss": 0.25, "top5": 1.0})
    assert line == "epoch 1/3  train loss 1.235  val loss 0.250  top-1 50.0 %  top-5 100.0 %"
    assert _epoch_line(2, 3, None, {"bleu": 12.34, "val_loss": 2.0}) == "epoch 3/3  val loss 2.000  BLEU 12.3"
