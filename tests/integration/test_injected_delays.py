"""A delay is found in the row of the ledger where it was put, and nowhere else.

A sleep here moves the clock that all of flatout reads, so that it can be long beside what a busy machine adds.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flatout
from flatout.data.loading import prepare
from flatout.data.source.dataset import Split
from flatout.engine import checkpoint, loop
from flatout.engine.precision import Precision
from flatout.tasks.classification import opening
from flatout.tasks.classification.task import Classification
from flatout.training import setup
from flatout.training.recording import RunRecords
from flatout.units import parse_bytes
from training import EPOCHS, assert_adds_up, recipe

SECONDS = 1000.0
PLACES: dict[str, tuple[Any, str, str]] = {  # what sleeps, and which part must have it
    "startup": (opening, "open_dataset", "startup"),
    "fetch": (Split, "locate", "data_wait"),
    "decode": (prepare, "decode_pixels", "data_wait"),
    "augment": (prepare, "place", "data_wait"),
    "copy": (Classification, "to_device", "copy"),
    "forward": (Classification, "loss", "forward"),
    "backward": (Precision, "backward", "backward"),
    "optimizer": (Precision, "step", "optimizer"),
    "validation": (Classification, "evaluate", "validation"),
    "checkpoint": (checkpoint, "save", "checkpoint"),
    "other": (RunRecords, "step", "other"),
}


class Delay:
    """Sleeps before each call of what it wraps; in a validation only where that is what is delayed, or `everywhere`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, place: str, seconds: float = SECONDS, everywhere: bool = False
    ) -> None:
        self.slept = 0.0
        self._seconds, self._everywhere = seconds, everywhere
        self.validating = False
        owner, name, _ = PLACES[place]
        clock = time.perf_counter
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + self.slept)
        monkeypatch.setattr(prepare, "native", None)  # its clock is not ours
        monkeypatch.setattr(setup, "refuse_undecodable", lambda split: None)  # reads a sample before the first batch
        monkeypatch.setattr(owner, name, self._delayed(getattr(owner, name), place == "validation"))
        monkeypatch.setattr(loop, "evaluate", self._noticed(loop.evaluate))

    def _delayed(self, function: Callable[..., Any], in_validation: bool) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            if self._everywhere or self.validating == in_validation:
                self.slept += self._seconds
            return function(*args, **kwargs)

        return slow

    def _noticed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*args: Any) -> Any:
            self.validating = True
            try:
                return function(*args)
            finally:
                self.validating = False

        return evaluate


@pytest.mark.parametrize("place", PLACES)
def test_a_delay_is_found_where_it_was_put(
    place: str, work: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = Delay(monkeypatch, place)
    config = recipe(shapes, train__max_steps=4, checkpoint__every_steps=2, data__cache="off")
    run = flatout.train(config, run=work / place)
    parts = run.summary["time"]["parts"]
    row = PLACES[place][2]
    assert delay.slept > 0
    assert parts[row] == pytest.approx(delay.slept, rel=0.05)
    assert sum(seconds for name, seconds in parts.items() if name != row) < 0.05 * delay.slept, parts
    assert_adds_up(run.directory)
    if row == "data_wait":  # the stage's own lane has it too
        assert run.summary["data"][f"{place}_seconds"] == pytest.approx(delay.slept, rel=0.05)


def test_the_rate_of_a_slow_store_is_named_within_a_tenth(
    work: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the report says: bytes by the files' sizes, seconds by the clock that was moved."""
    delay = Delay(monkeypatch, "fetch", seconds=20.0, everywhere=True)
    run = flatout.train(recipe(shapes, data__cache="off", checkpoint__every_steps=1000), run=work / "slow")
    files = [path for split in ("train", "val") for path in (shapes / split).rglob("*.*")]
    moved_bytes = EPOCHS * sum(path.stat().st_size for path in files)
    explained = flatout.explain(run)
    slow = next(each for each in explained.findings if each.cause == "data-fetch")
    told = next(line for line in slow.evidence if line.endswith("were read on average"))
    assert parse_bytes(told.split("/s")[0]) == pytest.approx(moved_bytes / delay.slept, rel=0.1)
