"""Whole runs with other arithmetic, other devices and other memory, and the learning-rate finder."""

import json
from pathlib import Path

import pytest
import torch

import flatout
from flatout.commands.lr_find import find_learning_rate
from flatout.config.loading import load_config
from flatout.engine import checkpoint
from flatout.runs.tables import effective_rows, read_table
from training import assert_ledger, command, recipe, snapshot, summary, trained, write_recipe


def losses(run: Path) -> list[float]:
    return [float(row[5]) for row in trained(run)]


def test_bf16_learns_and_keeps_fp32_weights(work: Path, shapes: Path) -> None:
    few = {
        "data__samples_per_class": 4, "train__epochs": 5, "validate__every_epochs": 9, "checkpoint__every_steps": None,
        "views__small": {"base": "train-64", "size": 8, "pad": 0},
    }  # fmt: skip
    run = flatout.train(recipe(shapes, **few, train__precision="bf16"), run=work / "bf16")
    full = flatout.train(recipe(shapes, **few), run=work / "fp32")
    low, exact = losses(run.directory), losses(full.directory)
    assert sum(low[-3:]) < sum(low[:3])
    assert low != exact
    assert low[0] == pytest.approx(exact[0], rel=0.02)
    assert load_config(full.directory / "config.yaml").config.train.precision == "fp32"  # what auto was, here
    flatout.train(recipe(shapes, **few | {"train__epochs": 6}), run=run.directory)
    assert load_config(run.directory / "config.yaml").config.train.precision == "bf16"  # a run keeps what it began with
    assert json.loads((run.directory / "env.json").read_text())["arithmetic"]["precision"] == "bf16"
    assert "train.precision changed" not in (run.directory / "log.txt").read_text()
    saved = checkpoint.load(run.directory / "checkpoints" / "last.safetensors")
    assert {value.dtype for value in saved.tensors.values() if value.is_floating_point()} == {torch.float32}


def test_gradient_checkpointing_changes_no_loss(work: Path, shapes: Path) -> None:
    short = {"train__max_steps": 8, "checkpoint__every_steps": None}
    plain = flatout.train(recipe(shapes, **short), run=work / "plain")
    recomputed = flatout.train(recipe(shapes, **short, train__checkpointing=True), run=work / "recomputed")
    assert losses(recomputed.directory) == pytest.approx(losses(plain.directory), rel=1e-4)
    assert recomputed.summary["accuracy"]["top1"] == plain.summary["accuracy"]["top1"]


def test_validation_uses_the_average_of_the_weights(work: Path, shapes: Path) -> None:
    """The average is looked at, never trained on: the losses are the same, the validation is not."""
    learned = flatout.train(recipe(shapes, checkpoint__every_steps=None), run=work / "learned")
    averaged = flatout.train(recipe(shapes, checkpoint__every_steps=None, train__ema=0.9), run=work / "averaged")
    assert losses(learned.directory) == losses(averaged.directory)
    assert learned.summary["accuracy"]["val_loss"] != averaged.summary["accuracy"]["val_loss"]


def test_an_emulated_device_runs_the_real_data_path(work: Path, shapes: Path) -> None:
    base_seconds, seconds_per_sample = 0.01, 0.002
    pace = {"base_seconds": base_seconds, "seconds_per_sample": seconds_per_sample}
    config = write_recipe(work / "tiny.yaml", shapes, device="emulated", emulated=pace, data__workers=1)
    run = work / "runs" / "tiny"
    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    assert "emulated" in finished.out.lower()
    assert "emulated" in command("report", "runs/tiny", cwd=work).out.lower()
    assert_ledger(run)
    values = summary(run)
    assert values["status"] == "completed"
    assert values["device"]["emulated"] is True
    assert "emulated" in values["device"]["name"]
    rows = effective_rows(read_table(run / "steps.csv"), "step")
    steps = [(int(row["samples"]), float(row["step_seconds"])) for row in rows]
    paced = sum(base_seconds + seconds_per_sample * samples for samples, _ in steps)
    assert sum(seconds for _, seconds in steps) >= 0.99 * paced  # what one step overshoots, the next is shorter by
    assert values["data"]["bytes_read"] > 0


def test_lr_find_suggests_plots_and_leaves_everything_alone(half: Path, work: Path, shapes: Path) -> None:
    before = snapshot(half)
    torch.manual_seed(123)
    random_state = torch.get_rng_state()
    result = find_learning_rate(recipe(shapes), low=1e-4, high=3.0, steps=40, out=work / "found")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert snapshot(half) == before
    assert 1e-4 < result["suggestions"]["steepest"] < 3.0
    written = json.loads((work / "found" / "lr-find.json").read_text())
    assert written["suggestions"] == result["suggestions"]
    assert len(written["points"]) > 10
    page = (work / "found" / "lr-find.html").read_text()
    assert "Learning-rate range test" in page


def test_lr_find_as_a_command(half: Path, work: Path) -> None:
    before = snapshot(half)
    finished = command("lr-find", "tiny.yaml", "--low", "1e-4", "--high", "3", "--steps", "30", cwd=work)
    assert finished.code == 0, finished.err
    assert "suggested train.lr" in finished.out
    assert snapshot(half) == before
    assert sorted(path.name for path in (work / "runs" / "tiny-lr-find").iterdir()) == ["lr-find.html", "lr-find.json"]
    as_json = command("lr-find", "tiny.yaml", "--steps", "12", "--out", "there", "--json", cwd=work)
    assert json.loads(as_json.out)["plot"] == "there/lr-find.html"
    assert command("runs", cwd=work).out.count("runs/tiny") == 1  # it is no run


def test_training_the_same_recipe_twice_in_one_process_gives_the_same(work: Path, shapes: Path) -> None:
    short = recipe(shapes, train__max_steps=5)
    first, second = (flatout.train(short, run=work / name) for name in ("first", "second"))
    assert first.summary["state_digest"] == second.summary["state_digest"]
    assert (
        flatout.train({**short, "train": {**short["train"], "seed": 1}}, run=work / "third").summary["state_digest"]
        != first.summary["state_digest"]
    )


def test_two_compute_threads_resume_to_the_bit_too(work: Path, shapes: Path) -> None:
    short = recipe(shapes, threads=2, train__schedule="constant", checkpoint__every_steps=None)
    whole = flatout.train(short, {"train.max_steps": 4}, run=work / "whole")
    flatout.train(short, {"train.max_steps": 2}, run=work / "parts")
    parts = flatout.train(short, {"train.max_steps": 4}, run=work / "parts")
    assert parts.summary["state_digest"] == whole.summary["state_digest"]
