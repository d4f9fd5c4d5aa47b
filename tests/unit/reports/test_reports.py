"""What a person reads about a run: the facts that are known, n/a for the others, names as they are."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from flatout.analysis.details import read_details
from flatout.reports.configuration import config_table
from flatout.reports.listing import runs_table
from flatout.reports.lr_plot import write_lr_plot
from flatout.reports.terminal import render
from flatout.runs import Run

SUMMARY: dict[str, Any] = {
    "run": "demo", "status": "completed", "cause": None, "attempts": 2, "samples_seen": 7200,
    "device": {"name": "Test CPU", "emulated": False, "count": 1},
    "accuracy": {"top1": 0.8125, "top5": 0.99, "val_loss": 0.654, "train_loss": 0.321, "best_epoch": 4},
    "throughput": {
        "samples_per_second": 412.7, "steps_per_second": 6.4, "step_seconds": {"mean": 0.155, "p50": 0.150, "p95": 0.2},
    },
    "time": {"wall_seconds": 100.0, "parts": {"startup": 5.0, "data_wait": 25.0, "forward": 69.5, "unattributed": 0.5}},
    "data": {"samples_total": 1440, "dataset_bytes": 1_500_000, "quarantined": 3},
    "checkpoint": {"files": 4, "bytes": 12_000_000, "seconds": 1.0},
    "cost": {"total_usd": 1.25, "lines": []},
}  # fmt: skip


def run_of(summary: dict[str, Any], directory: str = "runs/demo") -> Run:
    epochs = [{"attempt": "1", "epoch": str(epoch)} for epoch in range(6)]
    return Run(Path(directory), summary, {}, {}, [], epochs)


def render_run(run: Run) -> RenderableType:
    return render(read_details(run), {"page": "runs/demo/report.html"})


def shown(renderable: RenderableType) -> str:
    console = Console(width=140, highlight=False, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_complete_run_on_one_screen() -> None:
    text = shown(render_run(run_of(SUMMARY)))
    for fact in (
        "flatout: demo", "completed", "top-1 81.2 %", "in 1 min 40 s", "top-5 99.0 %", "best in epoch 5",
        "training loss 0.321", "validation loss 0.654", "413 samples/s", "155 ms (median 150 ms, 95 % below 200 ms)",
        "6 epochs", "7,200 samples", "no, it ran to its end, in 2 attempts", "1,440 samples, 1.5 MB, 3 in quarantine",
        "Test CPU: utilisation n/a", "$1.25", "runs/demo", "4 files, 12 MB", "runs/demo/report.html",
    ):  # fmt: skip
        assert fact in text, fact
    assert "EMULATED" not in text
    legend = [entry.split() for line in text.splitlines() for entry in line.strip("│ ").split("■")[1:]]
    assert legend == [
        ["forward", "69.5", "%", "1", "min", "10", "s"], ["data", "wait", "25.0", "%", "25", "s"],
        ["startup", "5.0", "%", "5", "s"], ["unattributed", "0.5", "%", "500", "ms"],
    ]  # fmt: skip
    assert text.count("█") == 60


def test_a_failed_run_tells_its_cause() -> None:
    text = shown(render_run(run_of({**SUMMARY, "status": "failed", "cause": "the loss is NaN at step 12"})))
    assert "failed" in text
    assert "the loss is NaN at step 12" in text


def test_an_emulated_run_says_so_everywhere() -> None:
    run = run_of({**SUMMARY, "device": {"name": "emulated", "emulated": True}})
    assert "EMULATED device: accuracy means nothing" in shown(render_run(run))
    assert "completed (emulated)" in shown(runs_table([run]))
    assert "emulated" not in shown(runs_table([run_of(SUMMARY)]))


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"run": "demo", "status": "failed", "cause": "killed"},
        {"status": "running", "time": {"wall_seconds": None, "parts": {}}, "throughput": {"step_seconds": None}},
        {**SUMMARY, "accuracy": {"top1": 0.5, "top5": None, "val_loss": None, "train_loss": None, "best_epoch": None}},
        {**SUMMARY, "cost": None, "checkpoint": None, "time": {"wall_seconds": 5.0, "parts": {"copy": None}}},
    ],
)
def test_a_partial_summary_is_shown_with_na_and_no_error(summary: dict[str, Any]) -> None:
    text = shown(render_run(run_of(summary)))
    assert summary.get("status", "failed") in text
    assert "n/a" in text
    assert "None" not in text
    assert "nan" not in text
    assert "demo" in shown(runs_table([run_of(summary)]))


def test_what_was_not_measured_is_na_and_not_zero() -> None:
    text = shown(render_run(run_of({"status": "failed"})))
    assert "n/a (not validated yet)" in text
    assert "n/a (no steps yet)" in text
    assert "n/a (set cost.instance or cost.usd_per_hour)" in text
    assert "no time recorded yet" in text


NAMES = ["[red]", "[bold]x[/bold]", "[/]", ";touch x", "$(touch x)", "a[link=x.org]b", ":smiley:", "<b>"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text_and_never_markup(name: str) -> None:
    run = run_of(
        {**SUMMARY, "run": name, "cause": f"class {name} is empty", "device": {"name": name, "emulated": False}},
        f"runs/{name}",
    )
    text = shown(render_run(run))
    assert f"flatout: {name}" in text
    assert f"class {name} is empty" in text
    assert f"runs/{name}" in text
    assert text.count(name) == 5  # title, cause twice, device, directory
    assert name in shown(runs_table([run]))
    assert name in shown(config_table([("name", name, name)]))


def test_control_characters_do_not_reach_the_terminal() -> None:
    text = shown(render_run(run_of({**SUMMARY, "run": "a\x1b[2J", "cause": "b\x1b]0;x\x07"}, "runs/c\x1b[31m")))
    assert "\x1b" not in text
    assert "a\\x1b[2J" in text


def test_parts_of_a_damaged_run_beyond_its_wall_clock_do_not_fill_the_screen() -> None:
    time = {"wall_seconds": 1.0, "parts": {"startup": 1e12, "forward": 1e30}}
    assert len(shown(render_run(run_of({**SUMMARY, "time": time})))) < 20_000


def test_a_verdict_without_its_reason_is_judged_anew() -> None:
    text = shown(render_run(run_of({**SUMMARY, "convergence": {"verdict": "trained"}})))
    assert "Fully trained?" in text


def test_an_alarm_is_in_the_headline() -> None:
    convergence = {"verdict": "wrong labels", "why": "validation is at chance", "alarms": ["validation is at chance"]}
    assert "ALARM: validation is at chance" in shown(render_run(run_of({**SUMMARY, "convergence": convergence})))


def test_runs_in_a_table() -> None:
    """One recipe trained twice has one name: the directory tells them apart, and is what other commands want."""
    again = run_of({"run": "demo", "status": "failed"}, "runs/demo-before-20261117")
    first, second = shown(runs_table([run_of(SUMMARY), again])).splitlines()[1:3]
    assert first.split() == ["runs/demo", "demo", "completed", "81.2", "%", "6", "413", "1", "min", "40", "s", "$1.25"]
    assert second.split() == ["runs/demo-before-20261117", "demo", "failed", "n/a", "6", "n/a", "n/a", "n/a"]


def test_a_configuration_in_a_table() -> None:
    text = shown(config_table([("train.ema", None, "default"), ("train.compile", False, "--set")]))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["train.ema", "null", "default"], ["train.compile", "false", "--set"],
    ]  # fmt: skip


def test_a_name_cannot_break_out_of_the_plot(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script>"
    point = {"learning_rate": 0.1, "loss": 1.0, "smoothed": 1.0}
    result = {"points": [point, {**point, "learning_rate": 0.2}], "suggestions": {"steepest": 0.1, "minimum": None}}
    write_lr_plot(tmp_path / "lr.html", attack, result)
    page = (tmp_path / "lr.html").read_text(encoding="utf-8")
    assert attack not in page
    assert page.count("<script") == 1
    assert "alert(1)" in page
    assert ">0.1<" in page.replace("\n", "")  # the axis says rates, not logarithms
    assert len(page) < 50_000
