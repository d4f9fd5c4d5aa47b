"""Weights of a run on other classes, frozen parts and rates of groups, with ranks, shared batches and kill -9."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flatout.engine.checkpoint import load_tensors
from flatout.engine.weight_files import read_weights
from flatout.runs.tables import read_table
from flatout.service.transport.paths import service_paths
from training import assert_same_training, command, row_count, start, wait_until, write_recipe

FROZEN = ("conv1", "bn1", "layer1")
TUNED = {
    "data__batch_size": 4,
    "model__freeze": list(FROZEN),
    "train__groups": [{"match": "fc", "lr_scale": 10, "weight_decay": 0.0}],
    "train__weight_decay": 0.1,
    "train__ema": 0.9,
    "parallel__mode": "ddp",
    "parallel__devices": 2,
    "parallel__preflight": False,
}


@pytest.fixture
def place(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """No service that others use."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(work.parent))
    yield {"XDG_RUNTIME_DIR": str(work.parent)}
    wait_until(lambda: not service_paths().socket.exists(), "the service to end", 60)


def test_frozen_parts_stay_to_the_bit_and_groups_have_their_rates(
    shapes: Path, uninterrupted: Path, work: Path, place: dict[str, str]
) -> None:
    names = sorted(each.name for each in (shapes / "train").iterdir())
    tuned = TUNED | {"data__classes": names[1:], "model__weights": f"run:{uninterrupted}"}
    alone = write_recipe(work / "alone.yaml", shapes, **tuned)
    recipe = write_recipe(work / "killed.yaml", shapes, **tuned, data__shared="auto")
    done = command("train", alone, "--run", "alone", cwd=work)
    assert done.code == 0, done.err
    assert "the last layer (fc) starts anew" in done.err
    running = start("train", recipe, "--run", "killed", cwd=work, environment=place)
    wait_until(lambda: row_count(work / "killed") >= 7 or not running.running, "7 steps")
    running.kill()
    done = command("train", recipe, "--run", "killed", cwd=work, environment=place)
    assert done.code == 0, done.err
    assert_same_training(work / "killed", work / "alone")

    before = read_weights(f"run:{uninterrupted}").tensors
    after = load_tensors(work / "killed/checkpoints/last.safetensors")
    for prefix in ("model/", "ema/average/"):
        found = {name.removeprefix(prefix): value for name, value in after.items() if name.startswith(prefix)}
        same = {name for name in found if name in before and torch.equal(found[name], before[name])}
        assert {name for name in found if name.startswith(FROZEN)} <= same
        assert not {"layer4.0.conv1.weight", "fc.weight"} & same
    for row in read_table(work / "killed" / "steps.csv"):
        assert float(row["learning_rate:fc"]) == pytest.approx(10 * float(row["learning_rate"]))
