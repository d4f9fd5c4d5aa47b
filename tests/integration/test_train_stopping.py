"""Ends before the last step: by steps, by the clock, by cost, by patience."""

import time
from pathlib import Path

import pytest

import flatout
from flatout.runs.tables import read_table
from training import (
    assert_same_training,
    checkpoints,
    command,
    expected_ledger,
    recipe,
    summary,
    trained,
    write_recipe,
)


def reached(run: Path) -> int:
    """The last step, which must be in a checkpoint too: nothing of what was done is lost."""
    step = int(trained(run)[-1][0])
    assert checkpoints(run)[-1].name == f"step-{step:09d}.safetensors"
    return step


def test_max_steps(work: Path, shapes: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, train__max_steps=7), work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    assert summary(run)["status"] == "completed"
    assert reached(run) == 7
    assert [row[:5] for row in trained(run)] == expected_ledger()[:7]
    assert summary(run)["accuracy"]["top1"] is not None  # the end is always validated


def test_max_steps_beyond_the_epochs_changes_nothing(work: Path, shapes: Path, uninterrupted: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, train__max_steps=10_000)
    assert command("train", config, cwd=work).code == 0
    assert_same_training(work / "runs" / "tiny", uninterrupted)


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        ({"stop__max_seconds": 0.001}, "stop.max_seconds"),
        ({"stop__max_usd": 1e-9, "cost__usd_per_hour": 3.6}, "stop.max_usd"),
    ],
)
def test_a_limit_that_is_reached_stops_the_run_and_the_rest_can_follow(
    work: Path, shapes: Path, uninterrupted: Path, limit: dict[str, float], cause: str
) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, **limit), work / "runs" / "tiny"
    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    assert summary(run)["status"] == "stopped"
    assert cause in summary(run)["cause"]
    assert cause in finished.out
    assert reached(run) == 1
    assert command("train", write_recipe(config, shapes), cwd=work).code == 0
    assert_same_training(run, uninterrupted)


def test_limits_that_are_not_reached_change_nothing(work: Path, shapes: Path, uninterrupted: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, stop={"max_seconds": "2h", "max_usd": 50}, cost__usd_per_hour=1.0)
    assert command("train", config, cwd=work).code == 0
    run = work / "runs" / "tiny"
    assert_same_training(run, uninterrupted)
    cost = summary(run)["cost"]
    assert cost["total_usd"] == pytest.approx(sum(line["usd"] for line in cost["lines"]))
    assert cost["total_usd"] == pytest.approx(summary(run)["time"]["wall_seconds"] / 3600, rel=1e-3)


def test_a_limit_reached_at_the_last_step_still_ends_completed_on_resume(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, stop__max_seconds=0.001, train__max_steps=1)
    run = work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    assert summary(run)["status"] == "stopped"
    assert command("train", config, cwd=work).code == 0
    assert summary(run)["status"] == "completed"
    assert summary(run)["accuracy"]["top1"] is not None
    assert len(trained(run)) == 1


def test_a_run_in_a_process_that_is_older_counts_its_own_time_only(work: Path, shapes: Path) -> None:
    """In a notebook, the hours before flatout.train are not the run's: stop.max_seconds and the cost go by its time."""
    began = time.monotonic()
    while time.monotonic() - began < 1.0:  # the process is older than this before the run begins
        flatout.train(recipe(shapes, train__max_steps=1), run=work / f"run-{time.monotonic_ns()}")
    began = time.monotonic()
    run = flatout.train(recipe(shapes, train__max_steps=1), run=work / "last")
    assert run.summary["time"]["wall_seconds"] <= time.monotonic() - began


def test_patience(work: Path, shapes: Path) -> None:
    """A rate so small that nothing gets better: the first validation is the best, two more end the run."""
    config = write_recipe(
        work / "tiny.yaml", shapes, train__epochs=9, train__lr=1e-30, stop__patience_epochs=2, data__batch_size=39
    )
    run = work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    assert summary(run)["status"] == "stopped"
    assert "stop.patience_epochs" in summary(run)["cause"]
    assert len(read_table(run / "epochs.csv")) == 3
    assert reached(run) == 12


def test_validation_and_checkpoints_at_their_intervals(work: Path, shapes: Path) -> None:
    config = write_recipe(
        work / "tiny.yaml", shapes, train__epochs=5, data__batch_size=78, validate__every_epochs=2,
        checkpoint={"every_epochs": 3, "keep_top": 9},
    )  # fmt: skip
    run = work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    validated = [int(row["epoch"]) + 1 for row in read_table(run / "epochs.csv") if row["top1"]]
    assert validated == [2, 4, 5]
    assert [int(path.stem[-9:]) for path in checkpoints(run)] == [6, 10]
    columns = set(read_table(run / "epochs.csv")[0])
    assert columns == {
        "attempt", "epoch", "step", "samples", "train_loss", "learning_rate", "time_unix", "top1", "val_loss"
    }  # fmt: skip


def test_without_a_validation_split_some_samples_are_held_out(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes / "train", train__max_steps=2)
    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    assert "held out" in finished.err
    assert summary(work / "runs" / "tiny")["accuracy"]["top1"] is not None


def test_a_run_that_stops_after_an_epoch_goes_on_to_the_same_bits(
    work: Path, shapes: Path, uninterrupted: Path
) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, stop__after_epochs=1), work / "runs" / "tiny"
    for _ in range(2):  # the second time there is nothing to do
        assert command("train", config, cwd=work).code == 0
        assert summary(run)["status"] == "stopped"
        assert summary(run)["cause"] == "reached stop.after_epochs = 1"
        assert reached(run) == len(expected_ledger()) // 2
        assert summary(run)["accuracy"]["top1"] is not None
    assert command("train", write_recipe(config, shapes), cwd=work).code == 0
    assert_same_training(run, uninterrupted)
