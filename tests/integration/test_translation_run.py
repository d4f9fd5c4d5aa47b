"""Train on made-up languages, then translate: what a user of the translation task sees."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.analysis.mean_epoch import mean_epoch
from flatout.commands import probe as probing
from flatout.commands import tune as tuning
from flatout.runs import read_run
from flatout.training.measuring import measure
from training import command, make_sentences, start, summary, write_recipe

LEARNING = {
    "train__epochs": 10, "train__lr": 0.004, "train__ema": 0.95, "model__width": 0.125, "model__dropout": 0.0,
    "train__label_smoothing": 0.0, "data__batch_tokens": 1024, "validate__every_epochs": 5, "checkpoint__every_steps": None,
    "checkpoint__every_epochs": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to translate."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "work").mkdir()
    data = make_sentences(folder / "sentences", pairs=2000, val_pairs=40)
    finished = command("train", write_recipe(folder / "tiny.yaml", data, **LEARNING), cwd=folder / "work")
    assert finished.code == 0, finished.err
    assert "BLEU is sacreBLEU nrefs:1" in finished.err
    return folder / "work" / "runs" / "tiny"


def test_the_run_knows_its_bleu_and_its_data(learned: Path) -> None:
    values = summary(learned)
    assert values["accuracy"]["bleu"] > 30, values["accuracy"]
    assert values["accuracy"]["top1"] is None
    assert values["data"]["samples_total"] == 2040
    data = learned.parents[2] / "sentences"
    assert values["data"]["splits"]["train"] == {
        "samples": 2000, "bytes": sum((data / f"train.{language}").stat().st_size for language in ("aa", "bb"))
    }  # fmt: skip
    assert values["task"] == "translation"
    assert not (learned / "classes.json").exists()
    with (learned / "quarantine.csv").open() as file:
        assert [(row["sample_id"], row["reason"]) for row in csv.DictReader(file)] == [("4", "line 5 is empty")]
    with (learned / "epochs.csv").open() as file:
        assert [bool(row["bleu"]) for row in csv.DictReader(file)].count(True) == 2


def test_a_usual_epoch_is_counted_in_the_batches_it_had(learned: Path) -> None:
    run = read_run(learned)
    usual = mean_epoch(run)
    assert usual is not None
    assert usual.batches * len(run.epochs) == len(run.steps)


def test_translate_reads_a_file_or_stdin_and_scores(learned: Path, work: Path) -> None:
    data = learned.parents[2] / "sentences"
    finished = command("translate", learned, data / "val.aa", "--reference", data / "val.bb", cwd=work)
    assert finished.code == 0, finished.err
    assert len(finished.out.splitlines()) == 40
    assert "BLEU" in finished.err
    assert "tok:13a" in finished.err
    greedy = command(
        "translate", learned, data / "val.aa", "--beam", 1, "--json", "--reference", data / "val.bb", cwd=work
    )
    result = json.loads(greedy.out)
    assert result["bleu"] == pytest.approx(summary(learned)["accuracy"]["bleu"], abs=0.01), "not what was validated"
    assert len(result["translations"]) == 40
    lines = (data / "val.aa").read_text().splitlines()[:3]
    piped = subprocess.run(
        [sys.executable, "-m", "flatout", "translate", learned, "--beam", "1"], input="\n".join(lines), cwd=work,
        capture_output=True, text=True,
    )  # fmt: skip
    assert piped.stdout.splitlines() == result["translations"][:3], piped.stderr
    both = json.loads(command("translate", learned, data / "val.aa", "--average", 2, "--json", cwd=work).out)
    assert len(both["checkpoint_steps"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("translate", "runs/none"), "no run in runs/none"),
        (("translate", "RUN", "--average", "9"), "checkpoints to average, not 9"),
        (("translate", "RUN", "none.txt"), "cannot read none.txt"),
        (("translate", "RUN", "two.txt", "--reference", "one.txt"), "has 2 lines but one.txt has 1"),
        (("translate", "RUN", "--beam", "0"), "beam"),
    ],
)
def test_what_a_user_can_get_wrong(learned: Path, work: Path, arguments: tuple[str, ...], message: str) -> None:
    (work / "two.txt").write_text("ba\nko\n")
    (work / "one.txt").write_text("ba\n")
    finished = command(*(str(learned) if each == "RUN" else each for each in arguments), cwd=work)
    assert finished.code == 2
    assert message in finished.error_line


def test_a_run_of_images_does_not_translate(uninterrupted: Path, work: Path) -> None:
    assert "trained for classification" in command("translate", uninterrupted, cwd=work).error_line


def test_another_budget_or_vocabulary_is_refused(sentences: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", sentences, train__max_steps=4)
    assert start("train", config, cwd=work).wait().code == 0
    config = write_recipe(work / "tiny.yaml", sentences, train__max_steps=8, data__batch_tokens=200)
    assert "data.batch_tokens changed from 160 to 200" in command("train", config, cwd=work).error_line
    config = write_recipe(work / "tiny.yaml", sentences, train__max_steps=8, data__vocabulary={"size": 301})
    assert "from bpe of 300 to bpe of 301" in command("train", config, cwd=work).error_line


def test_lr_find_works_on_sentences(sentences: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", sentences)
    result = json.loads(command("lr-find", config, "--steps", 12, "--json", cwd=work).out)
    assert len(result["points"]) >= 6


def test_explain_predict_compare_and_doctor_know_batches_of_tokens(learned: Path, work: Path) -> None:
    assert "verdict" in json.loads(command("explain", learned, "--json", cwd=work).out)
    answer = command("predict", learned, "--if", "data.batch_tokens=2048", "--json", cwd=work)
    same, double = json.loads(answer.out)
    steps = len(read_run(learned).steps) / 10
    assert same["epoch"]["value"] / same["step"]["value"] == pytest.approx(steps, rel=0.2)
    assert double["step"]["value"] > 1.5 * same["step"]["value"]
    refused = command("predict", learned, "--if", "data.batch_size=8", cwd=work)
    assert "only when task is classification" in refused.error_line
    doctor = command("doctor", learned.parents[2] / "tiny.yaml", cwd=work)
    assert "2,000 training and 40 validation pairs from aa to bb" in doctor.out
    assert "line 5 is empty" in doctor.out


def test_tune_changes_the_tokens_of_a_batch(sentences: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "measure_apart", measure)
    monkeypatch.setattr(tuning, "measure_apart", measure)
    monkeypatch.chdir(work)
    tuned = tuning.tune_recipe(write_recipe(work / "tiny.yaml", sentences), None, 0.1, out=work / "tuned.yaml")
    assert set(tuned.axes) == {"data.batch_tokens", "data.workers", "train.precision"}
    assert tuned.given.speed > 0
    assert command("config", "show", "tuned.yaml", cwd=work).code == 0


def test_a_suite_counts_its_batches_in_tokens(sentences: Path, work: Path) -> None:
    write_recipe(work / "tiny.yaml", sentences, train__max_steps=4)
    (work / "suite.yaml").write_text(
        "name: words\nrecipe: tiny.yaml\nvariants:\n"
        "  - {name: one, set: {}}\n  - {name: two, set: {data.batch_tokens: 200}}\n"
    )
    finished = command("suite", "suite.yaml", cwd=work)
    assert finished.code == 0, finished.err
    table = json.loads((work / "runs" / "words" / "table.json").read_text())
    assert [row["values"]["batch"] for row in table["rows"]] == [["160 tokens"], ["200 tokens"]]
