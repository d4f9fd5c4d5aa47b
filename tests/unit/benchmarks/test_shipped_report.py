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


def best(peer: str, rates: list[float], from_opening: list[float], kind: str = "jpeg") -> list[dict[str, Any]]:
    """Its warm rate, and that of its first epoch with the opening."""
    return [
        {"peer": peer, "task": "rrc224", "output": "uint8", "mode": "window", "kind": kind, "round": number,
         "images_per_second": rate, "opening_per_second": opening}
        for number, (rate, opening) in enumerate(zip(rates, from_opening, strict=True), 1)
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


def test_epoch_0_from_opening_beside_peers_from_opening_and_warm() -> None:
    results = shipped("default", [100.0]) + best("plain", [25.0], [20.0]) + best("gather", [9e9], [9e9], "ready-made")
    results += best("dali", [50.0], [30.0]) + best("handtuned", [40.0], [40.0])  # best of the warm, best from opening
    ours = "224: default, epoch 0 from opening, over the"
    for item, title, over_best, over_plain in (
        ("2", "epoch 0 from opening too", 2.5, 5.0),
        ("2, stricter", "already open and warm", 2.0, 4.0),
    ):
        found = demand(results, f"{ours} best peer at its best, {title}")
        assert (found.item, found.asked, found.ratios) == (item, 2.0, pytest.approx((over_best,)))
        found = demand(results, f"{ours} plain DataLoader of 2 workers, {title}")
        assert (found.item, found.asked, found.ratios) == (item, 3.5, pytest.approx((over_plain,)))


def test_a_peer_with_one_turn_is_compared_in_its_round() -> None:
    results = shipped("default", [100.0, 80.0, 60.0]) + best("plain", [10.0] * 3, [10.0] * 3)
    (once,) = best("spdl", [40.0], [40.0])
    found = demand(
        [*results, once | {"round": 2}], "224: default, epoch 0 from opening, over the best peer at its best, epo"
    )
    assert found.ratios == pytest.approx((2.0,))


def test_what_was_not_measured_is_said() -> None:
    assert demand([], "12 megapixels: decode: scaled over exact").cells[-2:] == ["not measured", ""]
