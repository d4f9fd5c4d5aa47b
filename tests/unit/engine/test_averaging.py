from pathlib import Path

import pytest
import torch

from flatout.engine import checkpoint
from flatout.engine.averaging import averaged_weights
from flatout.errors import ConfigError


def save(folder: Path, step: int, value: float, metric: float | None, average: float | None = None) -> None:
    tensors = {"model/w": torch.full((2,), value), "model/steps": torch.tensor(step), "optimizer/m/w": torch.ones(2)}
    if average is not None:
        tensors["ema/average/w"] = torch.full((2,), average)
    checkpoint.save(folder, step, tensors, {"metric": metric})


def test_the_best_are_averaged(tmp_path: Path) -> None:
    for step, value, metric in ((1, 1.0, 30.0), (2, 2.0, 10.0), (3, 4.0, 20.0), (4, 9.0, None)):
        save(tmp_path, step, value, metric)
    weights, steps = averaged_weights(tmp_path, 2, "higher")
    assert steps == [1, 3]
    assert weights["w"].tolist() == [2.5, 2.5]
    assert weights["steps"].item() == 1
    assert set(weights) == {"w", "steps"}


def test_the_moving_average_is_what_was_validated(tmp_path: Path) -> None:
    save(tmp_path, 1, 1.0, 5.0, average=7.0)
    assert averaged_weights(tmp_path, 1, "higher")[0]["w"].tolist() == [7.0, 7.0]


def test_without_metrics_the_newest_counts(tmp_path: Path) -> None:
    save(tmp_path, 1, 1.0, None)
    save(tmp_path, 2, 2.0, None)
    assert averaged_weights(tmp_path, 1, "higher")[1] == [2]
    with pytest.raises(ConfigError, match="has 2 checkpoints to average, not 3"):
        averaged_weights(tmp_path, 3, "higher")
