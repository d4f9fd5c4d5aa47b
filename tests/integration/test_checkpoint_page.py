"""What docs/checkpoints.md says of a checkpoint is what is in one, and its code runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from training import command, write_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")


def state_of(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        state: dict[str, Any] = json.loads(file.metadata()["state"])
        return {**state, "tensors": list(file.keys())}


def test_a_run_and_its_checkpoints_know_the_classes(uninterrupted: Path) -> None:
    names = sorted(path.name for path in (Path(_data_of(uninterrupted)) / "train").iterdir())
    assert json.loads((uninterrupted / "classes.json").read_text()) == names
    for path in (uninterrupted / "checkpoints").glob("*.safetensors"):
        assert state_of(path)["classes"] == names


def _data_of(run: Path) -> str:
    found = re.search(r"^  path: (.*)$", (run / "config.yaml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("settings", [{"train__ema": 0.9}, {"train__optimizer": "adamw"}])
def test_every_name_is_on_the_page(work: Path, shapes: Path, settings: dict[str, Any]) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, train__max_steps=2, **settings)
    assert command("train", config, cwd=work).code == 0
    state = state_of(work / "runs/tiny/checkpoints/last.safetensors")
    for key in state.keys() - {"tensors"}:
        assert f"`{key}`" in PAGE, key
    for name in state["tensors"]:
        kind, _, rest = name.partition("/")
        part = rest.partition("/")[0] if kind in ("optimizer", "ema") else ""
        assert f"`{part}`" in PAGE if kind == "optimizer" else f"`{kind}/{part}" in PAGE, name


def test_the_code_on_the_page_loads_the_weights(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(uninterrupted.parents[1])
    names: dict[str, Any] = {}
    exec(found[1], names)
    for name, value in names["model"].state_dict().items():
        assert torch.equal(value, names["tensors"][f"model/{name}"])
    with torch.inference_mode():
        assert names["model"](torch.zeros(1, 3, 16, 16)).shape == (1, len(names["classes"]))
