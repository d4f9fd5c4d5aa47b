"""A loss that explodes: the run stops with the samples named, and every checkpoint that is left is finite."""

import json
from pathlib import Path

import pytest

from flatout.engine import checkpoint
from flatout.sampling import batch_ids, epoch_order
from training import BATCH_SIZE, SAMPLES, STEPS, checkpoints, command, summary, trained, write_recipe

EXPLODING = {"train__lr": 1e20, "train__warmup_epochs": 0, "checkpoint__every_steps": 1}


def assert_finite_checkpoints(run: Path) -> None:
    for path in checkpoints(run):
        for name, value in checkpoint.load(path).tensors.items():
            assert not value.is_floating_point() or bool(value.isfinite().all()), f"{name} in {path.name}"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_exploding_run_stops_and_names_the_batch(work: Path, shapes: Path, precision: str) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **EXPLODING, train__precision=precision)
    run = work / "runs" / "tiny"
    failed = command("train", config, cwd=work)
    assert failed.code == 1
    assert "train.lr" in failed.last_line
    assert summary(run)["status"] == "failed"
    assert summary(run)["cause"] in failed.last_line
    assert summary(run)["state_digest"] is None
    assert_finite_checkpoints(run)
    bad = json.loads((run / "bad_batch.json").read_text())
    ids = batch_ids(epoch_order(SAMPLES, 0, bad["epoch"]), bad["batch_index"], BATCH_SIZE)
    assert bad["sample_ids"] == ids.tolist()
    assert all((shapes / name).is_file() for name in bad["names"])


def test_the_weights_of_the_bad_step_are_not_committed(work: Path, shapes: Path) -> None:
    """The checkpoint and the records end before the step that failed."""
    config, run = write_recipe(work / "tiny.yaml", shapes, **EXPLODING), work / "runs" / "tiny"
    failed = command("train", config, cwd=work)
    bad = json.loads((run / "bad_batch.json").read_text())
    assert len(trained(run)) == bad["step"] - 1
    assert max(int(path.stem[-9:]) for path in checkpoints(run)) <= bad["step"] - 1
    again = command("train", config, cwd=work)
    assert again.code == 1
    assert again.last_line == failed.last_line  # resumed before the bad step, and met it again


def test_a_loss_that_is_not_read_at_every_step_leaves_no_infinite_checkpoint(work: Path, shapes: Path) -> None:
    """As on a GPU, where the loss is looked at every tenth step only: checkpoints between must not be taken in."""
    config = write_recipe(work / "tiny.yaml", shapes, **EXPLODING, train__log_every=10)
    failed = command("train", config, cwd=work)
    assert failed.code == 1
    assert "not finite" in failed.last_line
    assert checkpoints(work / "runs" / "tiny")
    assert_finite_checkpoints(work / "runs" / "tiny")


def test_a_lower_rate_goes_on_from_the_last_finite_checkpoint(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, train__schedule="constant")
    run = work / "runs" / "tiny"
    assert command("train", config, "--set", "train.max_steps=6", cwd=work).code == 0
    assert command("train", config, "--set", "train.lr=1e20", cwd=work).code == 1
    assert checkpoints(run)[-1].name == "step-000000006.safetensors"
    finished = command("train", config, "--set", "train.lr=0.01", cwd=work)
    assert finished.code == 0
    assert "train.lr changed from 1e+20 to 0.01" in finished.err
    assert summary(run)["status"] == "completed"
    assert len(trained(run)) == STEPS
