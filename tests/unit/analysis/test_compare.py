"""Runs side by side: what may not be compared is said, what differs comes first, better means better."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout.analysis.comparability import Side, unique_labels
from flatout.analysis.comparison import Comparison, Figure, compare
from flatout.analysis.mean_epoch import MeanEpoch
from flatout.reports.compare_page import comparison_page
from flatout.reports.compare_text import judgement, relation, render_comparison
from flatout.runs import Run

SUMMARY: dict[str, Any] = {
    "run": "a", "status": "completed", "cause": None, "device": {"name": "cpu", "emulated": False}, "world_size": 1,
    "data_fingerprint": "f" * 32, "attempts": 1, "samples_seen": 1000,
    "accuracy": {"top1": 0.5, "top5": 0.9, "val_loss": 1.5, "train_loss": 1.0, "best_epoch": 1},
    "throughput": {"samples_per_second": 100.0, "step_seconds": {"mean": 0.1, "p50": 0.1, "p95": 0.2}},
    "time": {"wall_seconds": 20.0, "parts": {"startup": 4.0, "data_wait": 6.0, "forward": 10.0}},
    "data": {"samples_total": 500}, "device_use": {"utilization_mean": None, "memory_peak_bytes": None},
    "host": {"rss_peak_bytes": 10**9}, "cost": {"total_usd": 0.5, "prices_dated": "2026-09"},
}  # fmt: skip
SETTINGS = {"name": "a", "task": "classification", "checkpoint.metric": "top1", "data.batch_size": 10, "train.lr": 0.1}
EPOCH = MeanEpoch(50.0, 0.1, 5.0, 8.0, {"data_wait": 3.0}, {"data_wait": 3.0, "forward": 5.0})
EPOCHS = [{"epoch": "0", "top1": "0.4", "train_loss": "2.0"}, {"epoch": "1", "top1": "0.5", "train_loss": "1.0"}]


def side(label: str, settings: dict[str, Any] | None = None, epoch: MeanEpoch | None = EPOCH, **summary: Any) -> Side:
    values = {**SUMMARY, "run": label, **summary}
    run = Run(Path("runs") / label, values, {}, {"torch": "2.13", "host": "one"}, [{}] * 100, EPOCHS)
    return Side(label, run, {**SETTINGS, "name": label, **(settings or {})}, epoch)


def figure(found: Comparison, key: str) -> Figure:
    return next(each for each in found.figures if each.key == key)


def text_of(found: Comparison) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render_comparison(found))
    return captured.get()


def test_equal_runs_have_no_caveats_and_no_differences() -> None:
    found = compare([side("a"), side("b")])
    assert found.caveats == ()
    assert found.settings == ()
    assert {each.best for each in found.figures} == {None}
    assert "no key of the configuration differs" in text_of(found)


def test_the_keys_that_differ_come_first_and_names_do_not() -> None:
    found = compare([side("a"), side("b", {"train.lr": 0.2}), side("c", {"data.batch_size": 20})])
    assert found.settings == (("data.batch_size", (10, 10, 20)), ("train.lr", (0.1, 0.2, 0.1)))
    shown = text_of(found)
    assert shown.index("train.lr") < shown.index("samples per second") < shown.index("where the time went")


def test_better_means_better() -> None:
    fast = {"throughput": {"samples_per_second": 200.0, "step_seconds": {"p50": 0.05, "p95": 0.3}}}
    accuracy = {"top1": 0.6, "top5": 0.9, "val_loss": 1.8, "train_loss": 1.0, "best_epoch": 0}
    found = compare([side("a"), side("b", **fast, accuracy=accuracy, cost={"total_usd": 0.25})])
    verdicts = {each.key: judgement(each, 1) for each in found.figures}
    assert verdicts["accuracy.top1"] == "better"
    assert verdicts["accuracy.val_loss"] == "worse"
    assert verdicts["accuracy.top5"] == ""
    assert verdicts["samples_per_second"] == "better"
    assert (verdicts["p50.step_seconds"], verdicts["p95.step_seconds"]) == ("better", "worse")
    assert (verdicts["total_usd"], verdicts["point_usd"], verdicts["samples_per_usd"]) == ("better",) * 3
    assert relation(figure(found, "accuracy.top1"), 1) == "+10.0 points"
    assert relation(figure(found, "samples_per_second"), 1) == "2.00x"
    assert figure(found, "samples_per_second").best == 1
    assert "accuracy.best_epoch" not in verdicts


def test_money_per_epoch_and_per_point() -> None:
    found = compare([side("a"), side("b", cost={"total_usd": None})])
    assert figure(found, "epoch_usd").values == (pytest.approx(0.5 * 8 / 20), None)
    assert figure(found, "point_usd").values == (pytest.approx(0.5 / 50), None)
    assert figure(found, "epoch_usd").best is None


@pytest.mark.parametrize(
    ("other", "says", "unjudged"),
    [
        ({"data_fingerprint": "e" * 32, "data": {"samples_total": 7}}, "NOT the same data", "accuracy.top1"),
        ({"data_fingerprint": None, "imported": True}, "nothing says that b saw the same data", "accuracy.top1"),
        ({"device": {"emulated": True}}, "b ran on an EMULATED device", "samples_per_second"),
        ({"status": "failed", "cause": "out of memory"}, "b is failed (out of memory)", "total_usd"),
        ({"status": "running"}, "b is running", "wall_seconds"),
        ({"samples_seen": 10}, "not the same amount of training", "accuracy.top1"),
        ({"attempts": 3}, "b was resumed (3 attempts)", None),
        ({"cost": {"total_usd": 1.0, "prices_dated": "2027-01"}}, "price lists of different dates", None),
        ({"imported": True}, "b was imported", None),
        ({"settings": {"task": "translation"}}, "not the same task", "accuracy.top1"),
        ({"settings": {"checkpoint.metric": "bleu"}}, "not the same metric", None),
        ({"epoch": MeanEpoch(25.0, 0.1, 2.5, 4.0, {}, {})}, "epochs are not of the same length", "epoch_usd"),
    ],
)
def test_what_may_not_be_compared_is_said_at_the_top(other: dict[str, Any], says: str, unjudged: str | None) -> None:
    accuracy = {**SUMMARY["accuracy"], "top1": 0.9}
    found = compare([side("a"), side("b", **{"accuracy": accuracy, **other})])
    assert any(says in text for text in found.caveats), found.caveats
    assert says in text_of(found).split("figures")[0].replace("\n", " ")
    assert says in comparison_page(found, [side("a"), side("b")])
    if unjudged is None:
        assert judgement(figure(found, "accuracy.top1"), 1) == "better"
    else:
        assert figure(found, unjudged).better is None


def test_all_emulated_compares_speed_and_not_accuracy() -> None:
    emulated = {"device": {"emulated": True}}
    found = compare([side("a", **emulated), side("b", **emulated)])
    assert found.caveats == ("all on EMULATED devices: accuracy means nothing",)
    assert figure(found, "accuracy.top1").better is None
    assert figure(found, "samples_per_second").better == "higher"


def test_the_ledgers_stand_side_by_side() -> None:
    other = {"wall_seconds": 10.0, "parts": {"startup": 4.0, "validation": 6.0}}
    found = compare([side("a"), side("b", time=other, epoch=None)])
    assert found.parts == {
        "startup": (4.0, 4.0), "data_wait": (6.0, None), "forward": (10.0, None), "validation": (None, 6.0),
    }  # fmt: skip
    line = next(line for line in text_of(found).splitlines() if line.strip().startswith("startup"))
    assert line.split() == ["startup", "4", "s", "20.0", "%", "40", "ms", "4", "s", "40.0", "%", "40", "ms"]
    assert found.epoch_parts["forward"] == (5.0, None)


@pytest.mark.parametrize(
    ("speed", "usd", "says"),
    [
        (190.0, 0.6, "2 devices are 1.90x as fast as 1 (95 % efficiency); an epoch costs 20 % MORE than on 1"),
        (220.0, 0.4, "2 devices are 2.20x as fast as 1 (110 % efficiency); an epoch costs 20 % less than on 1"),
        (200.0, 0.5, "2 devices are 2.00x as fast as 1 (100 % efficiency); an epoch costs as much as on 1"),
        (150.0, None, "2 devices are 1.50x as fast as 1 (75 % efficiency)"),
    ],
)
def test_more_devices_say_what_they_bought(speed: float, usd: float | None, says: str) -> None:
    throughput = {**SUMMARY["throughput"], "samples_per_second": speed}
    two = side("two", world_size=2, throughput=throughput, cost={"total_usd": usd})
    for sides in ([side("one"), two], [two, side("one")]):
        found = compare(sides)
        assert [row.sentence for row in found.scaling] == [f"two: {says}"]
        assert says in text_of(found)
    assert compare([side("one"), side("other")]).scaling == ()


def test_names_that_collide_are_told_apart_by_their_folders() -> None:
    def run(path: str, name: str = "demo") -> Run:
        return Run(Path(path), {"run": name}, {}, {}, [], [])

    assert unique_labels([run("/a/runs/x"), run("/b/runs/y", "other")]) == ["demo", "other"]
    assert unique_labels([run("/one/demo"), run("/two/demo")]) == ["one/demo", "two/demo"]
    assert unique_labels([run("/one/runs/demo"), run("/two/runs/demo"), run("/three/z", "z")]) == [
        "one/runs/demo", "two/runs/demo", "z",
    ]  # fmt: skip


def test_json_holds_everything_and_is_json() -> None:
    values = json.loads(json.dumps(compare([side("a"), side("b", {"train.lr": 1})]).to_dict(), allow_nan=False))
    assert values["labels"] == ["a", "b"]
    assert values["settings"] == [["train.lr", [0.1, 1]]]
    assert values["figures"][0]["ratios"] == [1.0, 1.0]


@pytest.mark.parametrize("summary", [{}, {"accuracy": None, "time": None, "throughput": None, "cost": None}])
def test_runs_that_know_almost_nothing_are_compared_without_an_error(summary: dict[str, Any]) -> None:
    bare = Side("b", Run(Path("b"), {"status": "failed", **summary}, {}, {}, [], []), {}, None)
    for sides in ([side("a"), bare], [bare, side("a")], [bare, Side("c", bare.run, {}, None)]):
        found = compare(sides)
        assert "nan" not in text_of(found)
        assert "</html>" in comparison_page(found, sides)


def test_a_name_cannot_break_out_of_the_page() -> None:
    attack = "<script>alert(1)</script>"
    sides = [side(attack), side("b", {"model.name": attack})]
    page = comparison_page(compare(sides), sides)
    assert attack not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched
    assert "top-1 accuracy" in page
