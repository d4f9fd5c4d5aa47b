"""One small run that learned something, for all tests of what comes after training."""

from pathlib import Path

import pytest

import flatout
from flatout.data.source.shapes import make_shapes
from training import recipe

CHANGES = {
    "views": {"small": {"base": "train-64", "size": 16, "pad": 2}, "plain": {"base": "eval-64", "size": 16, "fraction": 0.9}},
    "train__epochs": 3, "train__ema": 0.8, "train__lr": 0.1, "checkpoint__every_steps": None,
}  # fmt: skip


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes, pictures larger than the view, averaged weights."""
    folder = tmp_path_factory.mktemp("after")
    for _ in make_shapes(folder / "shapes", 6, 24, 24, 6):
        pass
    values = recipe(folder / "shapes", **CHANGES)
    flatout.train(values, run=folder / "run")
    return folder / "run"
