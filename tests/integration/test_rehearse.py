"""`flatout train --rehearse cuda`: what would fail on a GPU is found where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatout
from flatout.cli.train import _rehearse
from flatout.commands.rehearse import rehearse
from flatout.engine import optimizers
from flatout.errors import ConfigError, RunFailed
from flatout.tasks.classification.task import Classification
from training import command, recipe, write_recipe

PARTS = [
    "arithmetic",
    "data",
    "model",
    "copy",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "resume",
    "validation",
]


def test_both_tasks_go_through_and_no_run_is_written(samples: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", samples, train__ema=0.9, train__accumulate=2, train__clip_norm=1.0)
    before = set(work.rglob("*"))
    done = command("train", str(config), "--rehearse", "cuda", cwd=work)
    assert done.code == 0, done.err
    said = done.out.splitlines()
    assert [line.split()[1].rstrip(":") for line in said if line.startswith("ok")] == PARTS
    assert any(line.startswith("not rehearsed") and "backward on the device" in line for line in said)
    assert set(work.rglob("*")) == before


def test_a_tensor_that_stays_on_the_cpu_is_named_with_its_line(
    shapes: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Classification.loss

    def careless(self: Any, model: nn.Module, inputs: Any) -> Tensor:
        return (plain(self, model, inputs) + torch.arange(3)).sum()

    monkeypatch.setattr(Classification, "loss", careless)
    (failed,) = rehearse(recipe(shapes)).failed
    assert failed.startswith("forward: ")
    assert "cuda:0 and cpu" in failed
    assert "test_rehearse.py" in failed
    assert "torch.arange(3)" in failed
    with pytest.raises(RunFailed, match=r"1 part\(s\) of the rehearsal failed") as caught:
        _rehearse(write_recipe(work / "tiny.yaml", shapes), [], "cuda", as_json=True)
    assert caught.value.exit_code == 1


def test_optimizer_state_that_a_resume_leaves_on_the_cpu_is_found(
    shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        optimizers,
        "_placed",
        lambda value, parameter, name, fused: value if name == "step" else torch.empty_like(parameter),
    )
    (failed,) = rehearse(recipe(shapes, train__optimizer="adamw")).failed
    assert "optimizer/step/" in failed.partition(" was on cuda:0 and is on cpu after a resume")[0]


def test_training_after_a_rehearsal_is_as_before(shapes: Path, work: Path) -> None:
    few = recipe(shapes, train__epochs=1, train__max_steps=3, checkpoint__every_steps=None)
    digests = [flatout.train(few, run=work / "before").summary["state_digest"]]
    assert rehearse(few).failed == []
    digests.append(flatout.train(few, run=work / "after").summary["state_digest"])
    assert digests[0] == digests[1]


def test_only_cuda_is_rehearsed(shapes: Path) -> None:
    with pytest.raises(ConfigError, match="only cuda"):
        rehearse(recipe(shapes), device="tpu")


def test_clipping_is_part_of_it(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clipped: list[float] = []
    monkeypatch.setattr(
        "flatout.engine.precision.clip_grads_with_norm_", lambda parameters, most, norm: clipped.append(most)
    )
    assert rehearse(recipe(shapes, train__clip_norm=0.5)).failed == []
    assert clipped == [0.5, 0.5], "in the first step, and after the resume"
