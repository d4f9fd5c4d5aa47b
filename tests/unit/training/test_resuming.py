"""Whether a checkpoint fits today's data: names of classes count as much as samples."""

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.config.loading import load_config
from flatout.engine.loop import Progress
from flatout.errors import DataError
from flatout.training.resuming import Resumed, check_compatible

CONFIG = load_config({}).config


def compatible(then: tuple[str, ...] | None, now: tuple[str, ...], accept: bool = False) -> list[str]:
    """The same samples, by their fingerprint."""
    dataset: Any = SimpleNamespace(fingerprint="same", classes=now, train=range(8))
    resumed = Resumed(Progress(), {}, data_fingerprint="same", train_samples=8, classes=then)
    return check_compatible(resumed, CONFIG, dataset, accept, 8)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (("b", "a", "c"), "class 0 was 'a' and is 'b', 1 was 'b' and is 'a';"),
        (("a", "b"), r"class 2 was 'c' and is None \(3 classes then, 2 now\)"),
        (tuple("vwxyz"), r"0 was 'a' and is 'v', .*, and 2 more \(3 classes then, 5 now\)"),
    ],
)
def test_the_first_names_that_differ_are_said(now: tuple[str, ...], said: str) -> None:
    with pytest.raises(DataError, match=said):
        compatible(("a", "b", "c"), now)
    assert "accepted with --accept-changed-data" in compatible(("a", "b", "c"), now, accept=True)[0]


def test_equal_names_and_old_checkpoints_pass() -> None:
    assert compatible(("a", "b"), ("a", "b")) == []
    assert compatible(None, ("a", "b")) == []
