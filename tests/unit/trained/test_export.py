"""An export says what the run's model says, or is not written: each way of being wrong is tried."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.commands.export import export_run
from flatout.data.pixels.views import View
from flatout.errors import ConfigError, ExportRefused
from flatout.trained import export as exporting
from flatout.trained import formats
from training import snapshot

FOREIGN = """
import json, sys
sys.modules["flatout"] = sys.modules["torch"] = None        # neither can be imported
folder, *pictures = sys.argv[1:]
sys.path.insert(0, folder)
import numpy as np, onnxruntime, preprocess
rules = preprocess.read_rules(f"{folder}/preprocessing.json")
classes = json.load(open(f"{folder}/classes.json"))
session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
pixels = np.stack([preprocess.prepare(each, rules) for each in pictures])
(chances,) = session.run(None, {"pixels": pixels})
print(json.dumps([classes[k] for k in chances.argmax(1)]))
"""


def test_a_foreign_script_with_onnxruntime_alone_gets_the_same_classes(learned: Path, tmp_path: Path) -> None:
    import flatout

    result = export_run(learned, "onnx", tmp_path / "out", licence="CC-BY-4.0")
    assert result["files"] == [
        "README.md",
        "classes.json",
        "model.onnx",
        "preprocess.py",
        "preprocessing.json",
        "proof.json",
    ]
    pictures = sorted(map(str, (learned.parent / "shapes/val").rglob("*.jpg")))
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN, tmp_path / "out", *pictures], check=True, capture_output=True, text=True
    )
    own = flatout.load(learned).predict(pictures)
    assert json.loads(done.stdout) == [each.name for each in own]
    proof = json.loads((tmp_path / "out/proof.json").read_text())
    assert (proof["samples"], proof["right"]) == (36, proof["exported_right"])
    assert "| licence of the data | CC-BY-4.0 |" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize("to", ["torch", "safetensors"])
def test_the_other_formats_are_proven_too(learned: Path, tmp_path: Path, to: str) -> None:
    result = export_run(learned, to, tmp_path / "out")
    assert result["model"] in result["files"]
    assert json.loads((tmp_path / "out/proof.json").read_text())["samples"] == 36
    assert "not stated" in (tmp_path / "out/README.md").read_text()


def changed_rules(change: Callable[[dict[str, Any]], None]) -> Callable[..., dict[str, Any]]:
    right = exporting.rules_of

    def rules(view: View, in_model: bool, shape: tuple[int, int]) -> dict[str, Any]:
        values = right(view, in_model, shape)
        change(values)
        return values

    return rules


MUTATIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "channel order": lambda rules: rules.update(channels="BGR"),
    "mean": lambda rules: rules["normalise"].update(mean=[0.5, 0.456, 0.406]),
    "std": lambda rules: rules["normalise"].update(std=[0.229, 0.5, 0.225]),
    "filter": lambda rules: rules["resize"].update(filter="nearest"),
    "crop": lambda rules: rules["crop"].update(fraction=1.0),
    "no crop": lambda rules: rules.update(crop={"kind": "none"}),
}


@pytest.mark.parametrize("wrong", MUTATIONS)
def test_wrong_preprocessing_is_refused_and_leaves_nothing(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(exporting, "rules_of", changed_rules(MUTATIONS[wrong]))
    with pytest.raises(ExportRefused, match="nothing was written"):
        export_run(learned, "safetensors", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_mean_inside_the_graph_is_refused(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = formats.PixelsToChances

    def wrong(model: Any, outputs: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> Any:
        return right(model, outputs, (0.5, *mean[1:]), std)

    monkeypatch.setattr(formats, "PixelsToChances", wrong)
    with pytest.raises(ExportRefused, match="nothing was written"):
        export_run(learned, "torch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_classes_in_another_order_are_refused_by_the_proof(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = exporting.write_json
    monkeypatch.setattr(
        exporting,
        "write_json",
        lambda path, values: write(path, values[::-1] if path.name == "classes.json" else values),
    )
    with pytest.raises(ExportRefused, match="top-1"):
        export_run(learned, "safetensors", tmp_path / "out")


def test_what_cannot_be_exported_is_said_before_anything_is_written(learned: Path, tmp_path: Path) -> None:
    before = snapshot(learned)
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        export_run(learned, "torch", tmp_path / "there")
    with pytest.raises(ConfigError, match="there is no folder"):
        export_run(learned, "torch", tmp_path / "no" / "out")
    with pytest.raises(ConfigError, match="'small' changes pictures at random"):
        export_run(learned, "torch", tmp_path / "out", view="small")
    assert snapshot(learned) == before
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
