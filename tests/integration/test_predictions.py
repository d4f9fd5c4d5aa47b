"""Predictions from real runs: what they reproduce, what they keep, and the runs that follow."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flatout.commands import predict as predicting
from flatout.commands.cache_costs import with_cache_costs
from flatout.commands.predict import calibration_of, predict_changes
from flatout.commands.scoring import score_predictions
from flatout.config.loading import load_config
from flatout.runs import read_run
from servers.slow_mount import can_mount, slow_mount
from training import SAMPLES, command, summary, write_recipe

EMULATED = {"device": "emulated", "emulated": {"base_seconds": 0.004, "seconds_per_sample": 0.0001}}
TWO_RANKS = ("--set", "parallel.mode=ddp", "--set", "parallel.devices=2")


@pytest.fixture
def run(uninterrupted: Path, work: Path) -> Path:
    target = work / "runs" / "tiny"
    shutil.copytree(uninterrupted, target)
    return target


def told(run: Path, *alternatives: dict[str, Any]) -> list[dict[str, Any]]:
    return [each.to_dict() for each in predict_changes(run, alternatives)]


def test_as_it_is_a_run_is_what_it_was(run: Path) -> None:
    as_it_is = told(run, {"train.epochs": 3})[0]
    was = summary(run)
    assert as_it_is["run"]["value"] == pytest.approx(was["time"]["wall_seconds"], rel=1e-3)
    for name in ("step", "samples_per_second", "epoch", "run"):
        assert as_it_is[name]["low"] < as_it_is[name]["value"] < as_it_is[name]["high"]


def test_two_ranks_are_predicted_trained_scored_and_predict_in_turn(shapes: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **EMULATED, train__epochs=2)
    assert command("train", config, cwd=work).code == 0
    one = work / "runs" / "tiny"
    _, by_ranks, by_devices = told(one, {"ranks": 2}, {"parallel.devices": 2})
    assert by_ranks["run"] == by_devices["run"]
    assert command("train", config, *TWO_RANKS, "--run", "runs/two", cwd=work).code == 0
    scores = score_predictions(work / "runs")
    assert {(each.made_in, each.run, each.outcome.quantity) for each in scores} == {
        ("tiny", "two", "step"),
        ("tiny", "two", "run"),
    }
    listed = command("predict", "--score", cwd=work).out
    assert "meant to be 80 %" in " ".join(listed.split())
    two = work / "runs" / "two"
    same, alone = told(two, {"ranks": 1})
    assert same["run"]["value"] == pytest.approx(summary(two)["time"]["wall_seconds"], rel=1e-3)
    steps = len([step for step in read_run(two).steps if step.epoch == 0])
    assert same["samples_per_second"]["value"] * same["step"]["value"] == pytest.approx(SAMPLES / steps)
    assert alone["samples_per_second"]["value"] * alone["step"]["value"] < 0.6 * SAMPLES / steps


def test_a_damaged_run_beside_is_passed_over(run: Path, work: Path) -> None:
    told(run, {"train.epochs": 2})
    shutil.copytree(run, work / "runs" / "damaged")
    (work / "runs" / "damaged" / "summary.json").write_text(json.dumps({"config_digest": {"a": {}}}))
    assert score_predictions(work / "runs") == []


def test_what_later_predictions_promise_follows_from_outcomes(run: Path, work: Path) -> None:
    """Predictions whose runs took twice as long, ten times what their intervals allowed for."""
    config = load_config(read_run(run).config).config
    before = calibration_of(read_run(run), config).interval_factors["step"]
    measured = predicting.read_signals(read_run(run)).step.seconds
    half = {name: measured / 2 * share for name, share in (("value", 1.0), ("low", 0.9), ("high", 1.1))}
    kept = {"made_unix": 1.0, "changes": {}, "outside_recipe": [], "step": half}
    line = json.dumps({**kept, "config_digest": summary(run)["config_digest"]})
    for number in range(25):
        made_in = work / "runs" / f"made{number}"
        made_in.mkdir()
        (made_in / "predictions.jsonl").write_text(f"{line}\nnot a prediction\n")
    assert before == pytest.approx(1, abs=0.3)
    assert calibration_of(read_run(run), config).interval_factors["step"] > 3


def test_the_change_is_never_cut(run: Path, work: Path) -> None:
    changes = "checkpoint.every_epochs=2,data.batch_size=16,data.workers=2"
    answer = command("predict", run, "--if", changes, cwd=work, environment={"COLUMNS": "80"})
    assert answer.code == 0, answer.err
    first = "".join(line[:19].strip() for line in answer.out.splitlines())
    for change in changes.split(","):
        assert change in first, answer.out
    assert "…" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_another_machine_is_priced_and_its_speed_not_claimed(run: Path, work: Path) -> None:
    answer = command("predict", run, "--if", "cost.instance=g5.xlarge", cwd=work)
    said = " ".join(answer.out.split())
    assert "speed not known" in said
    assert "flatout plan" in said
    (note,) = told(run, {"cost.instance": "g5.xlarge"})[1]["notes"]
    assert "g5.xlarge" in note


def test_what_filling_a_cache_takes_is_measured_where_the_run_did_not(shapes: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **EMULATED, data__cache="off", train__epochs=2)
    assert command("train", config, cwd=work).code == 0
    run = read_run(work / "runs" / "tiny")
    recipe = load_config(run.config).config
    bare = calibration_of(run, recipe)
    assert bare.cache_choice is not None
    assert not bare.cache_choice.is_measured
    measured = with_cache_costs(bare, run, recipe).cache_choice
    assert measured is not None
    assert measured.is_measured
    assert told(run.directory, {"data.cache": "memory"})[1]["notes"] == []
    (run.directory / "env.json").write_text(json.dumps({**run.environment, "host": "elsewhere"}))
    (note,) = told(run.directory, {"data.cache": "memory"})[1]["notes"]
    assert "was not measured" in note


@pytest.mark.skipif(not can_mount(), reason="a mount needs root and /dev/fuse")
def test_a_mount_that_training_stages_is_predicted_so(shapes: Path, work: Path) -> None:
    """Opening a file takes 5 ms there: a hundred times what a step computes."""
    with slow_mount(shapes, work / "mount", 0.005) as mount:
        fast = {"device": "emulated", "emulated": {"base_seconds": 0.0001, "seconds_per_sample": 0.0}}
        config = write_recipe(work / "tiny.yaml", mount, **fast, data__stage="off", data__cache="off", train__epochs=2)
        done = command("train", config, cwd=work, environment={"XDG_CACHE_HOME": str(work / "cache")})
        assert done.code == 0, done.err
    as_it_is, staged = told(work / "runs" / "tiny", {"data.stage": "auto"})
    assert as_it_is["limit"] == "loading"
    assert staged["step"]["value"] < as_it_is["step"]["value"] / 3
    assert staged["run"]["value"] < as_it_is["run"]["value"]
    assert staged["notes"] == []
