"""The table of a suite: rows for what worked and what did not, spread over repeats, and the estimate explained."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from flatout.analysis.mean_epoch import MeanEpoch
from flatout.analysis.suite import ExperimentOutcome, suite_rows
from flatout.reports.suite_table import as_html, as_json, as_markdown, as_terminal, cells
from flatout.runs import Run

CONFIG = {"data": {"batch_size": 128, "workers": 2}, "train": {"checkpointing": True}, "parallel": {"mode": "ddp"}}
DIFFERENCES = {
    "data_wait": 2.0,
    "warm_up": 0.0,
    "uneven_steps": -0.5,
    "validation": 3.0,
    "checkpoint": 0.01,
    "other": 0.0,
}


def outcome(name: str = "one", actual: float = 14.5, **changes: Any) -> ExperimentOutcome:
    epoch = MeanEpoch(10.0, 1.0, 10.0, actual, DIFFERENCES, {})
    summary = {
        "accuracy": {"top1": 0.25},
        "host": {"rss_peak_bytes": 2 * 10**9},
        "device_use": {"memory_peak_bytes": None},
    }
    values = {"comment": "why", "config": CONFIG, "run": Run(Path("r"), summary, CONFIG, {}, [], []), "epoch": epoch}
    return ExperimentOutcome(name, **{**values, **changes})


def test_the_columns_of_story_e_and_chosen_ones() -> None:
    (row,) = suite_rows([outcome()], ["accuracy.top1", "config.data.workers", "no.such.key"])
    assert cells(row) == {
        "name": "one", "batch": "128", "workers": "2", "checkpointing": "yes", "DP": "no", "DDP": "yes",
        "time per batch": "1 s", "estimated epoch": "10 s", "predicted epoch": "n/a", "actual epoch": "14.5 s", "memory": "2 GB",
        "accuracy.top1": "25.0 %", "config.data.workers": "2", "no.such.key": "n/a", "comments": "why",
    }  # fmt: skip


def test_repeats_are_one_row_with_their_spread() -> None:
    (row,) = suite_rows([outcome(actual=seconds) for seconds in (14.0, 20.0, 15.0)], [])
    assert cells(row)["actual epoch"] == "15 s (14 s to 20 s)"
    assert cells(row)["batch"] == "128"
    assert row.values["actual epoch"] == [14.0, 20.0, 15.0]


def test_a_failed_experiment_is_a_row_with_its_cause() -> None:
    failed = outcome("two", run=None, epoch=None, cause="data.batch_size is 999 | too large")
    rows = suite_rows([outcome(), failed], ["accuracy.top1"])
    assert cells(rows[1])["batch"] == "128"
    assert cells(rows[1])["actual epoch"] == "n/a"
    assert cells(rows[1])["comments"] == "data.batch_size is 999 | too large; why"
    markdown = as_markdown("mine", rows)
    assert r"999 \| too large" in markdown
    assert {line.count(" | ") for line in markdown.splitlines() if line.startswith("| two")} == {12}


def test_the_difference_is_explained_largest_first() -> None:
    markdown = as_markdown("mine", suite_rows([outcome()], []))
    assert "| one | +4.5 s | +45 % | +3 s validation, +2 s waiting for data, -500 ms steps off the median |" in markdown


def test_a_wide_terminal_gets_a_table_and_a_narrow_one_paragraphs() -> None:
    rows = suite_rows([outcome(), outcome("two")], ["accuracy.top1"])
    for width in (40, 80, 250):
        console = Console(width=width)
        with console.capture() as captured:
            for each in as_terminal(rows, width):
                console.print(each)
        text = captured.get()
        assert "…" not in text
        for word in ("checkpointing", "14.5", "two", "25.0", "validation"):
            assert word in text, (width, word)


def test_html_escapes_and_json_is_json() -> None:
    rows = suite_rows([outcome("<script>alert(1)</script>")], [])
    page = as_html("mine", rows)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert json.loads(json.dumps(as_json("mine", rows), allow_nan=False))["rows"][0]["values"]["batch"] == [128]
