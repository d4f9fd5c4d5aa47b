"""What a user types after training, as commands: evaluate, classify, export; for translation, too."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from flatout.data.source.shapes import make_shapes
from training import command, installed_command, make_sentences, snapshot, write_recipe

WIDE = {
    "views": {"small": {"base": "train-64", "size": 16, "pad": 2}, "plain": {"base": "eval-64", "size": 16}},
    "train__epochs": 1, "checkpoint__every_steps": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run in runs/tiny, trained by two ranks that had averaged weights."""
    folder = tmp_path_factory.mktemp("after")
    (folder / "work").mkdir()
    for _ in make_shapes(folder / "data", 4, 16, 16, 5):
        pass
    two = {**WIDE, "train__ema": 0.8, "parallel__mode": "ddp", "parallel__devices": 2}
    done = command("train", write_recipe(folder / "tiny.yaml", folder / "data", **two), cwd=folder / "work")
    assert done.code == 0, done.err
    return folder / "work"


def test_two_ranks_one_and_training_agree_to_the_last_digit(work: Path) -> None:
    found = [
        json.loads(command("evaluate", "runs/tiny", "--json", "--out", f"{ranks}.html", "--ranks", ranks, cwd=work).out)
        for ranks in (1, 2)
    ]
    assert [each["as_training_said"] for each in found] == [True, True]
    timed = ("seconds", "samples_per_second", "ranks", "page")
    alone, shared = ({key: value for key, value in each.items() if key not in timed} for each in found)
    assert alone == shared
    assert (found[0]["ranks"], found[1]["ranks"]) == (1, 2)
    assert (work / "2.html").read_text().startswith("<!doctype html>")


def test_files_are_classified_in_their_order_and_bad_ones_are_rows(work: Path, tmp_path: Path) -> None:
    good = sorted((work.parent / "data/val").rglob("*.jpg"))[:3]
    (tmp_path / "broken.jpg").write_bytes(good[0].read_bytes()[:60])
    what = [good[0], tmp_path / "broken.jpg", tmp_path / "gone.jpg", good[1]]
    done = command("classify", "runs/tiny", *what, "--top", 2, cwd=work)
    assert done.code == 1
    assert "2 of 4 files could not be read" in done.err
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["path"] for row in rows] == [str(each) for each in what]
    assert [bool(row["error"]) for row in rows] == [False, True, True, False]
    assert all(float(row["probability"]) >= float(row["probability_2"]) for row in rows if not row["error"])


def test_a_folder_becomes_json_lines_in_a_file_that_is_whole(work: Path, tmp_path: Path) -> None:
    pictures = work.parent / "data/val"
    done = command("classify", "runs/tiny", pictures, "--json", "--out", tmp_path / "all.jsonl", "--top", 9, cwd=work)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["path"] for row in rows] == [str(each) for each in sorted(pictures.rglob("*.jpg"))]
    assert all(len(row["predictions"]) == 4 for row in rows)  # no more than there are classes
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "nowhere"), "no run in nowhere"),
        (("evaluate", "runs/tiny", "--data", "nowhere"), "nowhere does not exist"),
        (("evaluate", "runs/tiny", "--checkpoint", "x.safetensors"), "no weights at x.safetensors"),
        (("classify", "runs/tiny", "empty"), "no image in empty"),
        (("classify", "runs/tiny", "-", "a.jpg"), "give it alone"),
        (("classify", "runs/tiny", "a.jpg", "--out", "no/x.csv"), "there is no folder"),
        (("export", "runs/tiny", "--to", "tflite"), "'tflite' is not one of"),
        (("export", "runs/tiny", "--to", "torch", "--out", "empty"), "empty is there already"),
        (("train", "dmeo"), "no recipe at dmeo; did you mean demo?"),
        (("recipes", "show", "dmeo"), "no recipe is called 'dmeo'; did you mean demo?"),
        (("init", "nowhere"), "nowhere does not exist"),
        (("init", "empty"), "no class folders of images in empty"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_nothing_is_written(work: Path, words: tuple[str, ...], said: str) -> None:
    (work / "empty").mkdir(exist_ok=True)
    before = snapshot(work)
    done = command(*words, cwd=work)
    assert (done.code, said in done.error_line) == (2, True), done.err
    assert snapshot(work) == before


def test_an_interrupted_evaluation_leaves_the_run_as_it_was(work: Path, tmp_path: Path) -> None:
    """The ranks of an evaluation must not mark a run that is still training as failed."""
    run = tmp_path / "run"
    shutil.copytree(work / "runs/tiny", run, symlinks=True)
    values = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**values, "status": "running"}))
    done = command("evaluate", run, "--ranks", 2, "--data", "nowhere", "--json", cwd=work)
    assert done.code == 2
    assert "nowhere does not exist" in done.last_line
    assert json.loads((run / "summary.json").read_text())["status"] == "running"


def test_a_translation_is_evaluated_and_exported(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    data = make_sentences(tmp_path / "sentences", pairs=60)
    done = command("train", write_recipe(tmp_path / "tiny.yaml", data, train__epochs=1), cwd=tmp_path / "work")
    assert done.code == 0, done.err
    found = json.loads(command("evaluate", "runs/tiny", "--json", cwd=tmp_path / "work").out)
    assert found["as_training_said"] is True
    assert set(found["metrics"]) == {"bleu", "val_loss", "chrf"}
    assert found["chrf_signature"].startswith("nrefs:1")
    refused = command("export", "runs/tiny", "--to", "onnx", cwd=tmp_path / "work")
    assert (refused.code, "use --to safetensors" in refused.error_line) == (2, True)
    done = command("export", "runs/tiny", "--to", "safetensors", "--out", "out", "--json", cwd=tmp_path / "work")
    assert done.code == 0, done.err
    files = ["README.md", "config.yaml", "model.safetensors", "proof.json", "vocabulary.json"]
    assert json.loads(done.out)["files"] == files
    assert (command("classify", "runs/tiny", "x.jpg", cwd=tmp_path / "work")).code == 2


def test_recipes_are_listed_shown_and_copied_and_found_by_name(tmp_path: Path) -> None:
    listed = json.loads(command("recipes", "--json", cwd=tmp_path).out)
    assert {"demo", "imagenet-resnet18-g5", "tiny200-resnet18-2gpu"} <= {each["name"] for each in listed}
    assert all(each["about"] for each in listed)
    shown = command("recipes", "show", "demo", cwd=tmp_path).out
    assert command("recipes", "copy", "demo", cwd=tmp_path).out == "demo.yaml\n"
    assert (tmp_path / "demo.yaml").read_text() == shown
    assert "is there already" in command("recipes", "copy", "demo", cwd=tmp_path).error_line
    copied = command("recipes", "copy", "tiny200-resnet18-2gpu", "mine.yaml", cwd=tmp_path)
    assert copied.out.split() == ["mine.yaml", "tiny200-resnet18.yaml"]
    assert "recipe: tiny200-resnet18.yaml" in (tmp_path / "mine.yaml").read_text()
    for name in ("tiny40-resnet18-cpu", "recipes/tiny40-resnet18-cpu.yaml"):
        assert command("config", "show", name, "--json", cwd=tmp_path).code == 0


def test_init_writes_a_recipe_that_trains(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work.parent / "data/train", tmp_path / "pictures")  # without a validation split
    made = command("init", "pictures", "--json", cwd=tmp_path)
    assert made.code == 0, made.err
    assert json.loads(made.out)["recipe"] == "pictures.yaml"
    assert "there is no validation split" in (tmp_path / "pictures.yaml").read_text()
    assert "is there already" in command("init", "pictures", cwd=tmp_path).error_line
    done = command("train", "pictures.yaml", "--set", "train.max_steps=2", "--set", "model.width=0.125", cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "runs/pictures/summary.json").read_text())["status"] == "completed"


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    asked = {"_FLATOUT_COMPLETE": "complete_bash", "COMP_WORDS": "flatout eva", "COMP_CWORD": "1"}
    assert installed_command(cwd=tmp_path, environment=asked).out.split() == ["evaluate"]


def test_the_version_is_printed(tmp_path: Path) -> None:
    import flatout

    assert command("--version", cwd=tmp_path).out == f"flatout {flatout.__version__}\n"
    assert sys.version_info >= (3, 11)
