"""What the generator of scenarios draws, and how its judge holds a verdict against the truth."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benchmarks" / "verdicts"), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from causes import CAUSES, draw  # noqa: E402
from judging import fix_row, judged  # noqa: E402

BY_NAME = {cause.name: cause for cause in CAUSES}


def row(cause: str, seconds: float = 20.0, busy: bool = False, **without: float) -> dict[str, Any]:
    """A run whose verdict is this cause."""
    finding = {"id": "x", "cause": cause, "title": cause, "gain": {"factor": 1.5}, "saved_seconds": 6.0, "fix": {"text": ""}}  # fmt: skip
    told = {"cause": cause, "healthy": cause == "compute", "verdict": cause, "findings": [finding]}
    return {"seconds": seconds, "busy": busy, "without": {k.replace("_", " "): v for k, v in without.items()}, **told}


def verdict(given: dict[str, Any]) -> dict[str, Any]:
    return judged(given, [BY_NAME[name] for name in given["without"]])


def test_the_strongest_is_the_one_without_which_the_run_is_shortest() -> None:
    found = verdict(row("copy", slow_copy=12.0, slow_start=18.0))
    assert (found["truth"], found["right"]) == (["slow copy"], True)
    assert not verdict(row("startup", slow_copy=12.0, slow_start=18.0))["right"]
    assert verdict(row("startup", slow_copy=12.0, slow_start=12.5))["right"]  # nearly as strong


def test_a_cause_that_costs_nothing_is_a_clean_bill_or_its_name() -> None:
    assert verdict(row("compute", slow_copy=19.9))["right"]
    assert verdict(row("copy", slow_copy=19.9))["right"]
    assert not verdict(row("startup", slow_copy=19.9))["right"]


def test_a_gain_promised_for_what_is_not_there_is_counted() -> None:
    assert verdict(row("network", slow_copy=12.0))["false_causes"] == ["x"]
    assert verdict(row("copy", slow_copy=12.0))["false_causes"] == []


def test_a_fix_is_inside_its_promise_or_slower() -> None:
    promised = {"factor": 1.5, "low": 1.3, "high": 1.8}
    assert fix_row("x", {}, promised, 15.0, 10.0)["inside"]
    assert fix_row("x", {}, promised, 10.0, 12.0) | {"inside": False, "slower": True} == fix_row("x", {}, promised, 10.0, 12.0)  # fmt: skip


def test_seeds_draw_the_same_and_no_two_causes_that_set_the_same() -> None:
    for seed in range(200):
        drawn = draw(seed)
        assert drawn.without().settings == draw(seed).without().settings
        names = [cause.name for cause, _ in drawn.causes]
        assert len(set(names)) == len(names) <= 2
        keys = [key for cause, each in drawn.causes for key in {**cause.scene.settings, **each.settings}]
        assert len(set(keys)) == len(keys)
