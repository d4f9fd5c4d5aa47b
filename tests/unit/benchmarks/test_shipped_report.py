"""What the committed loader table says of "It is done when" follows from its rows."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[3] / "benchmarks" / "loaders" / "shipped_report.py"
SPEC = importlib.util.spec_from_file_location("shipped_report", FILE)
assert SPEC is not None
assert SPEC.loader is not None
report: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report)


def shipped(peer: str, rates: list[float], notes: str = "", total: float = 3.0) -> list[dict[str, Any]]:
    """One turn in each round; `total` seconds for three epochs of 100 samples."""
    return [
        {"peer": peer, "task": "rrc224", "output": "uint8", "mode": "epochs", "kind": "flatout", "round": number,
         "epoch0_per_second": rate, "epoch_samples": 100, "total_seconds": total, "notes": notes}
        for number, rate in enumerate(rates, 1)
    ]  # fmt: skip


def warm(peer: str, rates: list[float], kind: str = "jpeg") -> list[dict[str, Any]]:
    return [
        {"peer": peer, "task": "rrc224", "output": "uint8", "mode": "window", "kind": kind, "round": number,
         "images_per_second": rate}
        for number, rate in enumerate(rates, 1)
    ]  # fmt: skip


def demand(results: list[dict[str, Any]], text: str) -> Any:
    (found,) = [each for each in report.demands(results) if text in each.text]
    return found


def test_within_each_round_against_the_one_whose_median_is_best() -> None:
    results = shipped("default", [90.0, 100.0, 60.0])
    results += shipped("cache off, 1 worker", [500.0, 50.0, 50.0]) + shipped(
        "cache off, 2 workers", [100.0, 100.0, 80.0]
    )
    found = demand(results, "224: default (fills none), epoch 0, over the best with the cache off")
    assert (found.asked, found.ratios) == (0.9, (0.9, 1.0, 0.75))
    assert found.cells[-1] == "yes"  # the median round


def test_less_is_asked_of_an_epoch_that_fills() -> None:
    results = shipped("default", [70.0], "workers: 2; cache: all decoded samples in memory (1 MB)")
    results += shipped("cache off, 2 workers", [100.0])
    assert demand(results, "fills a cache").asked == 0.65


def test_the_whole_of_three_epochs() -> None:
    results = shipped("default", [70.0], total=3.0) + shipped("cache memory, 2 workers", [50.0], total=2.7)
    found = demand(results, "224: default, three epochs")
    assert found.ratios == pytest.approx((0.9,))
    assert found.cells[-1].startswith("**no**")


def test_ready_made_pixels_are_no_peer() -> None:
    results = (
        shipped("default", [100.0]) + warm("plain", [25.0]) + warm("dali", [40.0]) + warm("gather", [9e9], "ready-made")
    )
    assert demand(results, "224: default, epoch 0, over the best peer").ratios == pytest.approx((2.5,))
    assert demand(results, "224: default, epoch 0, over the plain DataLoader").ratios == pytest.approx((4.0,))


def test_what_was_not_measured_is_said() -> None:
    assert demand([], "12 megapixels: decode: scaled over exact").cells[-2:] == ["not measured", ""]
