"""explain, predict, doctor, probe and tune as a user types them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import flatout
from flatout.commands import probe as probing
from flatout.commands import tune as tuning
from flatout.commands.scoring import score_predictions
from flatout.diagnosis.finding import CAUSES
from flatout.training.measuring import Measured, measure, measure_apart
from servers.faults import Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from training import command, recipe, write_recipe

EMULATED = {"device": "emulated", "emulated": {"base_seconds": 0.004, "seconds_per_sample": 0.0001}}


@pytest.fixture
def run(uninterrupted: Path, work: Path) -> Path:
    target = work / "runs" / "tiny"
    shutil.copytree(uninterrupted, target)
    return target


class TestExplain:
    def test_says_what_holds_a_run_back(self, run: Path, work: Path) -> None:
        answer = command("explain", run, "--json", cwd=work)
        assert answer.code == 0, answer.err
        told = json.loads(answer.out)
        assert told["cause"] in CAUSES
        assert told["verdict"].endswith(".")
        assert json.loads((run / "findings.json").read_text()) == told
        for finding in told["findings"]:
            assert finding.keys() >= {"id", "title", "evidence", "fix", "gain", "usd"}

    def test_as_a_library(self, run: Path) -> None:
        explained = flatout.explain(run)
        assert explained.cause in CAUSES
        assert explained.verdict

    def test_names_the_verdict_on_a_terminal(self, run: Path, work: Path) -> None:
        answer = command("explain", run, cwd=work)
        assert answer.code == 0
        assert "cause: " in answer.out

    def test_a_fix_is_a_recipe_that_nothing_has_run_yet(self, shapes: Path, work: Path) -> None:
        config = write_recipe(work / "slow.yaml", shapes, **EMULATED, checkpoint__every_steps=1, train__epochs=2)
        assert command("train", config, cwd=work).code == 0
        answer = command("explain", "runs/tiny", "--fix", "fixed.yaml", "--json", cwd=work)
        assert answer.code == 0, answer.err
        changes = json.loads(answer.out)["changes"]
        fixed = yaml.safe_load((work / "fixed.yaml").read_text())
        assert changes["checkpoint.every_steps"] == fixed["checkpoint"]["every_steps"] != 1
        assert command("config", "show", "fixed.yaml", cwd=work).code == 0
        assert [path.name for path in (work / "runs").iterdir()] == ["tiny"]

    def test_no_run_is_one_line(self, work: Path) -> None:
        answer = command("explain", "runs/nothing", cwd=work)
        assert answer.code == 2
        assert "no run in" in answer.error_line


class TestPredict:
    def test_alternatives_side_by_side_and_kept(self, run: Path, work: Path) -> None:
        answer = command(
            "predict", run, "--if", "data.workers=2", "--if", "data.workers=1,data.batch_size=16", "--json", cwd=work
        )
        assert answer.code == 0, answer.err
        told = json.loads(answer.out)
        assert len(told) == 3
        decided = json.loads((run / "resolved.json").read_text())["attempts"][0]["decided"]["data"]["cache"]
        assert (decided["value"] in ("memory", "disk", "off"), bool(decided["reason"])) == (True, True)
        for each in told:
            assert 0 < each["step"]["low"] <= each["step"]["value"] <= each["step"]["high"]
        kept = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
        assert [each["changes"] for each in kept] == [{"data.workers": 2}, {"data.workers": 1, "data.batch_size": 16}]

    def test_a_run_that_follows_is_scored(self, run: Path, work: Path, shapes: Path) -> None:
        changed = write_recipe(work / "changed.yaml", shapes, train__accumulate=2, name="changed")
        assert command("predict", run, "--if", "train.accumulate=2", cwd=work).code == 0
        assert score_predictions(work / "runs") == []
        assert command("train", changed, cwd=work).code == 0
        step, whole, memory = score_predictions(work / "runs")
        assert (step.made_in, step.run) == ("tiny", "changed")
        assert [each.outcome.quantity for each in (step, whole, memory)] == ["step", "run", "memory"]
        assert step.outcome.measured > 0
        listed = command("predict", "--score", cwd=work)
        assert "mean absolute error" in listed.out

    @pytest.mark.parametrize(("wrong", "said"), [
        ("model.width=2", "no prediction for model.width"),
        ("data.wrokers=2", "unknown key data.wrokers"),
        ("data.workers", "has no value"),
        ("storage.latency=fast", "is not a duration"),
    ])  # fmt: skip
    def test_what_cannot_be_predicted_is_one_line(self, run: Path, work: Path, wrong: str, said: str) -> None:
        answer = command("predict", run, "--if", wrong, cwd=work)
        assert answer.code == 2
        assert said in answer.error_line


class TestDoctor:
    def test_a_good_machine_and_recipe(self, shapes: Path, work: Path) -> None:
        answer = command("doctor", write_recipe(work / "tiny.yaml", shapes), "--json", cwd=work)
        told = json.loads(answer.out)
        assert answer.code == 0, told
        areas = {line["area"] for line in told["lines"]}
        assert areas >= {
            "recipe",
            "device",
            "cores",
            "memory",
            "shm",
            "disk",
            "clock",
            "price",
            "data",
            "store",
            "images",
            "pace",
            "link",
        }
        assert told["seconds"] < 60

    def test_a_dataset_that_is_not_there_is_a_problem_with_a_remedy(self, work: Path) -> None:
        answer = command("doctor", write_recipe(work / "tiny.yaml", work / "nowhere"), "--json", cwd=work)
        assert answer.code == 1
        (problem,) = [line for line in json.loads(answer.out)["lines"] if line["status"] == "problem"]
        assert problem["area"] == "data"
        assert problem["remedy"]

    def test_broken_images_are_found(self, shapes: Path, work: Path) -> None:
        copied = work / "data"
        shutil.copytree(shapes, copied)
        for path in sorted((copied / "train").rglob("*.*"))[::4]:
            path.write_bytes(b"not an image")
        answer = command("doctor", write_recipe(work / "tiny.yaml", copied), cwd=work)
        assert answer.code == 1
        assert "cannot be decoded" in answer.out


def test_probe_calibrates_and_predicts(shapes: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "measure_apart", measure)  # in this process: a start each would take a minute in all
    found = probing.probe_recipe(recipe(shapes, **EMULATED), None, seconds=0.3, out=work / "runs" / "p")
    assert found.calibration.device.base_seconds >= 0
    assert found.calibration.decode_seconds > 0
    answer = command("predict", "runs/p", "--if", "data.workers=2", "--json", cwd=work)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)[1]["changes"] == {"data.workers": 2}


def test_what_is_measured_apart_may_die(shapes: Path) -> None:
    measured = measure_apart(recipe(shapes, data__path=str(shapes / "nowhere")), 0.3)
    assert "nowhere" in (measured.failed or "")


def test_tune_finds_the_best_with_a_quarter_of_the_grid(
    shapes: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a machine whose speed is known; the real one is benchmarks/tuning."""
    tried = []

    def known(given: dict[str, Any], seconds: float, synthetic: bool = False) -> Measured:
        batch, workers = given["data"]["batch_size"], given["data"]["workers"]
        own, load = 0.004 + 0.0001 * batch, 0.0004 * batch
        step = own + load if workers == 0 else max(own, load / workers)
        tried.append((batch, workers))
        return Measured(batch, (step,) * 10, (max(0.0, step - own),) * 10)

    monkeypatch.setattr(probing, "measure_apart", measure)
    monkeypatch.setattr(tuning, "measure_apart", known)
    monkeypatch.chdir(work)
    tuned = tuning.tune_recipe(recipe(shapes, **EMULATED), None, 0.3, out=work / "tuned.yaml")
    assert len({*tried}) <= max(3, tuned.grid_size // 4)
    assert tuned.chosen.speed > 1.3 * tuned.given.speed
    assert tuned.claim.low < tuned.gain < tuned.claim.high
    turns = [each for each in tuned.trials if len(each.samples_per_second) >= 3]
    assert tuned.given in turns, "what is claimed rests on rounds that the given setting played, too"
    assert tuned.changes["data.workers"] == tuned.chosen.setting["data.workers"]
    assert command("config", "show", "tuned.yaml", cwd=work).code == 0


def test_a_store_that_throttles_is_named(shapes: Path, work: Path, bucket: Bucket, fault_proxy: FaultProxy) -> None:
    shutil.copytree(shapes, bucket.folder, dirs_exist_ok=True)
    fault_proxy.rules(Rule("throttle", share=0.4, objects_only=True))
    environment = {
        "AWS_ENDPOINT_URL": bucket.options["endpoint"], "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": bucket.options["access_key_id"], "XDG_CACHE_HOME": str(work / "cache"),
        "AWS_SECRET_ACCESS_KEY": bucket.options["secret_access_key"],
    }  # fmt: skip
    changes = {"data__path": bucket.url, "data__workers": 1, "data__stage": "off", "data__cache": "off"}
    config = write_recipe(work / "remote.yaml", shapes, **EMULATED, **changes, checkpoint__every_steps=None)
    answer = command("train", config, cwd=work, environment=environment)
    assert answer.code == 0, answer.err
    told = json.loads(command("explain", "runs/tiny", "--json", cwd=work).out)
    (finding,) = [each for each in told["findings"] if each["id"] == "throttling"]
    assert finding["cause"] == "data-fetch"
    assert "requests were answered with slow down" in finding["title"]
