"""A few hundred rounds of `make fuzz-files`, and the damage that a user reported: one line, exit code 2, no other run lost."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from flatout.commands.show import run_list
from flatout.config.loading import load_config, parse_assignments
from flatout.engine import checkpoint
from flatout.errors import CheckpointCorrupt, ConfigError
from training import command, write_recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))
import files_fuzz
import scenes
from damage import NASTY_TEXT
from working_copy import WorkingCopy

DAMAGE: dict[str, tuple[str, str]] = {
    "deep": ("summary.json", "[" * 100_000),
    "a section that is a number": ("summary.json", '{"status": "completed", "throughput": 5}'),
    "a null section": ("summary.json", '{"status": "completed", "throughput": null, "device": null, "time": null}'),
    "wall clock as text": ("summary.json", '{"status": "completed", "time": {"wall_seconds": "x"}}'),
    "cost lines that are none": ("summary.json", '{"status": "completed", "cost": {"lines": 7}}'),
    "a list as configuration": ("config.yaml", "[1, 2]"),
    "a section that is a list": ("config.yaml", "name: x\ndata: [1]\n"),
    "aliases": ("config.yaml", "a: &a [*a]"),
    "steps that overflow": ("steps.csv", "attempt,step,epoch,samples,step_seconds\n1,1,0,8,1e999\n"),
    "steps without numbers": ("steps.csv", "attempt,step,epoch\n1,\u0663,0\n"),
    "epochs beyond counting": ("epochs.csv", "attempt,epoch,top1\n1," + "9" * 400 + ",1\n"),
    "a field without end": ("steps.csv", "attempt,step\n1," + "x" * 200_000 + "\n"),
    "spans of other things": ("spans/rank0.jsonl", '5\n[1]\n{"attempt": "x"}\n{"name": [], "own": {}}\n'),
    "a bill without amounts": ("summary.json", '{"status": "completed", "cost": {"lines": [{"name": "node"}]}}'),
    "a fingerprint by a list": ("summary.json", '{"status": "completed", "data_fingerprint_by": ["content"]}'),
    "a killed run whose best is a number": ("config.yaml", "name: tiny\ncheckpoint: {metric: 1}\n"),
    "a split without its size": (
        "summary.json",
        '{"status": "completed", "data": {"splits": {"train": {"files": 3}}}}',
    ),
}


@pytest.fixture(scope="module")
def material(complete: Path, shapes: Path) -> Path:
    """What needs no training beside the one run."""
    folder = complete.parent
    shutil.copytree(complete, folder / "other", symlinks=True)
    write_recipe(folder / "tiny.yaml", shapes)
    (folder / "sweep.yaml").write_text("recipe: tiny.yaml\nover: {train.lr: [0.05, 0.1]}\n")
    (folder / "suite.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: one}]\n")
    scenes.make_inputs(folder, shapes)
    scenes.make_copies(folder)
    return folder


@pytest.fixture(scope="module")
def complete(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    shutil.copytree(uninterrupted, folder / "tiny", symlinks=True)
    for words in scenes.finishing("tiny"):
        assert command(*words, cwd=folder).code == 0
    return folder / "tiny"


def test_damaged_files_are_one_line(material: Path) -> None:
    result = files_fuzz.fuzz(material, 200, seed=19)
    assert not result.found, "\n\n".join(result.found.values())


def _same_size(path: Path) -> None:
    path.write_text("B")


def _as_a_folder(path: Path) -> None:
    path.unlink()
    (path / "new").mkdir(parents=True)


TOUCHED: dict[str, Callable[[Path], object]] = {
    "as many bytes": _same_size,
    "a folder": _as_a_folder,
    "gone": Path.unlink,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "the link": lambda path: (path.with_name("link").unlink(), path.with_name("link").touch()),
    "its folder": lambda path: shutil.rmtree(path.parent),
    "a file as its folder": lambda path: (shutil.rmtree(path.parent), path.parent.touch()),
    "others beside it": lambda path: (path.with_name("new").mkdir(), path.with_name("more").touch()),
    "another of the same name": lambda path: (path.with_name("b").write_text("B"), path.with_name("b").replace(path)),
}


@pytest.mark.parametrize("how", TOUCHED)
def test_the_fuzzer_puts_back_what_was_touched(how: str) -> None:
    folder = Path("run/inner")
    folder.mkdir(parents=True)
    (folder / "a").write_text("A")
    (folder / "link").symlink_to("a")
    copy = WorkingCopy()
    for _ in range(2):
        TOUCHED[how](folder / "a")
        with pytest.raises(SystemExit):
            copy.check()
        copy.put_back()
        copy.check()
        assert [path.name for path in sorted(folder.iterdir())] == ["a", "link"]


@pytest.mark.parametrize("kind", DAMAGE)
def test_one_damaged_run_does_not_hide_the_others(
    complete: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "damaged", "z"):
        shutil.copytree(complete, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints"))
    file, text = DAMAGE[kind]
    (tmp_path / "damaged" / file).write_text(text)
    listed = {Path(run["directory"]).name: run for run in run_list(tmp_path)}
    assert listed.keys() == {"a", "damaged", "z"}
    assert listed["a"]["status"] == listed["z"]["status"] == "completed"
    monkeypatch.chdir(tmp_path)
    files_fuzz.register()
    for words in (["runs", "."], ["explain", "damaged"], ["report", "damaged"], ["compare", "a", "damaged"]):
        ended, said = files_fuzz.attempt(scenes.cli(*words))
        assert ended in (("fine",) if words[0] == "runs" else ("fine", "exit 2")), said


NO_RECIPES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "an alias of itself": lambda path: path.write_text("&a {b: *a}"),
    "a bomb of aliases": lambda path: path.write_bytes(max(NASTY_TEXT, key=lambda text: text.count(b"*"))),
    "deep": lambda path: path.write_text("{a: " * 5000),
}


@pytest.mark.parametrize("kind", NO_RECIPES)
def test_what_is_no_recipe(tmp_path: Path, kind: str) -> None:
    NO_RECIPES[kind](tmp_path / "recipe.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "recipe.yaml")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "given", ["train.lr=1e308", "train.lr=.inf", "data.batch_size=99999999999999999999", "name=&a [*a]"]
)
def test_absurd_values_are_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        load_config({"name": "x"}, parse_assignments([given]))


STATES = {"a list": "[1]", "deep": "[" * 5000, "a wrong type": '{"step": "x"}', "no step": "{}", "none": None,
          "a sum in words": '{"step": 41, "progress": {"loss_sum": "x"}}', "a best that is a list": '{"step": 41, "progress": {"best": [1]}}'}  # fmt: skip


@pytest.mark.parametrize("kind", STATES)
def test_a_checkpoint_with_another_state(complete: Path, tmp_path: Path, kind: str) -> None:
    """Its digest fits: whoever made the state could make that too."""
    whole = sorted((complete / "checkpoints").glob("step-*"))[-1]
    tensors, text = load_file(whole), STATES[kind]
    digest = checkpoint._digest(text, checkpoint.state_digest(tensors)) if text else ""
    save_file(tensors, tmp_path / "step-000000041.safetensors", {"state": text, "digest": digest} if text else None)
    shutil.copy(whole, tmp_path)
    assert [saved.step for saved in checkpoint.list_saved(tmp_path)] == [40]
    with pytest.raises(CheckpointCorrupt):
        checkpoint.load(tmp_path / "step-000000041.safetensors")
    found, notes = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert json.dumps(found.state["step"]) == "40"
    assert len(notes) == 1
