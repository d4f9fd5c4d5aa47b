"""A suite from its first experiment through Ctrl-C to the last, and comparing what it left, as a user does it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flatout.errors import RunFailed
from training import EPOCHS, STEPS, STEPS_PER_EPOCH, command, row_count, start, summary, wait_until, write_recipe

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from flatout.cli.main import run; run()"


def without_torch(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def write_suite(work: Path, shapes: Path) -> Path:
    write_recipe(work / "tiny.yaml", shapes, cost={"usd_per_hour": 3.6})
    variants = [
        {"name": "workers", "set": {"data.workers": 1}, "comment": "beside the loop"},
        {"name": "too large", "set": {"data.batch_size": 5000}},
    ]
    path = work / "mine.yaml"
    path.write_text(yaml.safe_dump({"recipe": "tiny.yaml", "variants": variants, "columns": ["accuracy.top1"]}))
    return path


def test_a_suite_stops_goes_on_and_keeps_what_failed_as_a_row(work: Path, shapes: Path, uninterrupted: Path) -> None:
    suite, run = write_suite(work, shapes), work / "runs" / "mine" / "workers"
    running = start("suite", suite, cwd=work)
    wait_until(lambda: row_count(run) >= STEPS_PER_EPOCH + 2 or not running.running, "the second epoch")
    running.send(signal.SIGINT)
    stopped = running.wait()
    assert stopped.code == 130, stopped.err
    assert "the same command goes on" in stopped.last_line
    assert (summary(run)["status"], summary(run)["cause"]) == ("stopped", "Ctrl-C; the same command resumes")
    assert "Ctrl-C" in (work / "runs/mine/table.md").read_text()
    assert not (work / "runs/mine/too-large").exists()

    finished = command("suite", suite, "--json", cwd=work)
    assert finished.code == 1
    assert "1 of 2 experiments failed" in finished.last_line
    rows = {row["name"]: row for row in json.loads(finished.out)["rows"]}
    assert "resumed, 2 attempts" in rows["workers"]["comments"]
    assert rows["workers"]["values"]["time per batch"][0] > 0
    assert rows["workers"]["values"]["accuracy.top1"] == [summary(run)["accuracy"]["top1"]]
    assert "data.batch_size is 5000 but the training split has" in rows["too large"]["causes"][0]
    assert (summary(run)["status"], row_count(run)) == ("completed", STEPS)
    assert summary(run)["cost"]["total_usd"] == json.loads((run / "cost.json").read_text())["total_usd"]

    # finished runs are looked at, not trained again: all of this needs no torch
    (work / "only.yaml").write_text(
        yaml.safe_dump(
            {"name": "mine", "recipe": "tiny.yaml", "variants": [{"name": "workers", "set": {"data.workers": 1}}]}
        )
    )
    again = without_torch("suite", "only.yaml", cwd=work)
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stderr
    page = without_torch("compare", uninterrupted, run, "--html", "compare.html", cwd=work)
    assert page.returncode == 0, page.stderr
    assert "workers was resumed (2 attempts)" in page.stdout
    assert "data.workers" in page.stdout
    assert "</html>" in (work / "compare.html").read_text()
    compared = json.loads(without_torch("compare", uninterrupted, run, "--json", cwd=work).stdout)
    assert compared["labels"] == ["tiny", "workers"]
    assert {key for key, _ in compared["settings"]} == {"data.workers", "cost.usd_per_hour"}
    top1 = next(each for each in compared["figures"] if each["key"] == "accuracy.top1")
    assert top1["values"][0] == top1["values"][1]  # resumed, with other workers: the same to the bit
    assert len(json.loads(without_torch("runs", "runs/mine", "--json", cwd=work).stdout)) == 1
    assert len((run / "epochs.csv").read_text().splitlines()) == 1 + EPOCHS


def test_every_row_after_the_first_was_predicted_before_it_began(work: Path, shapes: Path) -> None:
    emulated = {"base_seconds": 0.004, "seconds_per_sample": 0.0002}
    write_recipe(work / "tiny.yaml", shapes, device="emulated", emulated=emulated)
    variants = [
        {"name": "baseline"},
        {"name": "checkpointing", "set": {"train.checkpointing": True, "data.batch_size": 16}},
        {"name": "another rate", "set": {"train.lr": 0.01}},
    ]
    (work / "mine.yaml").write_text(yaml.safe_dump({"recipe": "tiny.yaml", "variants": variants}))
    for _ in range(2):  # trained, then looked at
        done = command("suite", "mine.yaml", "--json", cwd=work)
        assert done.code == 0, done.err
        found = {row["name"]: row["values"]["predicted epoch"] for row in json.loads(done.out)["rows"]}
        assert found["baseline"] == [None]
        assert found["checkpointing"][0] > 0
        assert found["another rate"] == [None], "the model knows nothing of it"
    (kept,) = (work / "runs/mine/baseline/predictions.jsonl").read_text().splitlines()
    first = json.loads((work / "runs/mine/checkpointing/summary.json").read_text())
    assert json.loads(kept)["config_digest"] == first["config_digest"]


def test_experiments_that_failed_are_counted_once_whatever_their_repeats() -> None:
    from flatout.analysis.suite import ExperimentOutcome, suite_rows
    from flatout.commands.suite import SuiteResult

    outcomes = [
        ExperimentOutcome(name, "", {}, cause=why) for name, why in (("a", "x"), ("b", None), ("a", "x"), ("b", None))
    ]
    with pytest.raises(RunFailed, match="1 of 2 experiments failed"):
        SuiteResult(Path("runs/mine"), "mine", suite_rows(outcomes, ()), False).raise_if_unfinished()


def test_a_changed_configuration_is_trained_afresh(work: Path, uninterrupted: Path) -> None:
    from flatout.commands.suite import next_action
    from flatout.config.loading import load_config
    from flatout.runs import read_run

    run = read_run(uninterrupted)
    config = load_config(run.config).config
    renamed = load_config(run.config, {"name": "other"}).config
    changed = load_config(run.config, {"train.lr": 0.07}).config
    assert next_action(run, config, renamed) == "skip"
    assert next_action(run, config, changed) == "fresh"
    for status, cause, action in (
        ("failed", "x", "resume"), ("stopped", "SIGTERM; the same command resumes", "resume"),
        ("stopped", "reached stop.max_usd = $1.00", "skip"),
    ):  # fmt: skip
        run.summary.update(status=status, cause=cause)
        assert next_action(run, config, config) == action


def test_wrong_input_is_one_line(work: Path, shapes: Path, uninterrupted: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes)
    (work / "bad.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: a, set: {train.lrr: 1}}]\n")
    (work / "good.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: a}]\nrepeats: 2\n")
    (work / "damaged").mkdir()
    (work / "damaged/config.yaml").write_text("name: x\n")
    (work / "damaged/summary.json").write_text("{")
    for arguments, says in (
        (("suite", "bad.yaml"), "experiment 'a': unknown key train.lrr; did you mean train.lr?"),
        (("suite", "none.yaml"), "no suite at none.yaml"),
        (("suite", "good.yaml", "--set", "data.path=no/such/place"), "no/such/place does not exist"),
        (("suite", "good.yaml", "--set", "data.path=''"), "data.path is not set"),
        (("suite", "good.yaml", "--runs", "tiny.yaml/x"), "cannot make tiny.yaml/x"),
        (("compare", uninterrupted), "two runs or more"),
        (("compare", uninterrupted, uninterrupted), "is given twice"),
        (("compare", uninterrupted, "nowhere"), "no run in nowhere"),
        (("compare", uninterrupted, "damaged"), "cannot read damaged/summary.json"),
    ):
        done = command(*arguments, cwd=work)
        assert done.code == 2, done.err
        assert says in done.error_line
    assert not (work / "runs").exists()
