"""A run as a page, as Markdown and as a trace: every kind of run gives one, and names stay text."""

import json
import re
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout.analysis.answers import answers
from flatout.analysis.details import Details, read_details
from flatout.analysis.network import correlation, network_rates, step_times_by_network
from flatout.analysis.trace import write_trace
from flatout.reports import page as page_room
from flatout.reports.html import report_page
from flatout.reports.markdown import report_markdown
from flatout.reports.terminal import render
from flatout.runs import Run
from flatout.runs.steps import StepRow

ATTACK = "<script>alert(1)</script>"
SUMMARY: dict[str, Any] = {
    "run": "demo", "status": "completed", "cause": None, "attempts": 1, "samples_seen": 80,
    "device": {"name": "Test CPU", "emulated": False, "count": 1},
    "accuracy": {"top1": 0.8125, "top5": 0.99, "val_loss": 0.654, "train_loss": 0.321, "best_epoch": 1},
    "throughput": {"samples_per_second": 80.0, "steps_per_second": 10, "step_seconds": {"mean": 0.1, "p50": 0.1, "p95": 0.1}},
    "time": {"wall_seconds": 10.0, "parts": {"startup": 1.0, "data_wait": 2.0, "forward": 6.5, "unattributed": 0.5}},
    "data": {"samples_total": 40, "dataset_bytes": 1_500_000, "bytes_read": 9, "quarantined": 1, "fetch_seconds": 1.5,
             "decode_seconds": 2.5, "augment_seconds": 0.5, "cache_hits": 30, "cache_misses": 10},
    "device_use": {"utilization_mean": None}, "network": {"bytes_sent": None, "bytes_received": None},
    "checkpoint": {"files": 2, "bytes": 2000, "seconds": 0.5}, "learning_rate": {"schedule": "cosine from 0.5 to 0"},
    "cost": {"total_usd": 1.25, "prices_dated": "2026-09", "unpriced": [], "lines": [
        {"name": "training nodes", "quantity": 2.5, "unit": "hours", "unit_price_usd": 0.5, "usd": 1.25}]},
}  # fmt: skip
CONFIG = {"data": {"batch_size": 8}, "train": {"epochs": 2, "schedule": "cosine", "warmup_epochs": 1.0}}


def step(n: int) -> StepRow:
    return StepRow(1, n, (n - 1) // 5, (n - 1) % 5, 8, "", 1 / n, 0.1, 0.1, 0.02, 1000.0 + n)


def epoch(n: int) -> dict[str, str]:
    return {"attempt": "1", "epoch": str(n), "step": str(5 * n + 5), "train_loss": "0.5", "val_loss": "0.6", "top1": "0.8",
            "learning_rate": "0.1"}  # fmt: skip


def details_of(folder: Path, summary: dict[str, Any] = SUMMARY, steps: int = 10) -> Details:
    run = Run(folder, summary, CONFIG, {"flatout": "0.1.0", "command": ["train", ATTACK]}, [*map(step, range(1, steps + 1))],
              [epoch(0), epoch(1)])  # fmt: skip
    return read_details(run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory with every file a report reads."""
    (tmp_path / "spans").mkdir()
    rows = [{"attempt": 1, "started_unix": 1000.0}, {"name": "startup", "step": 0, "start": 0, "seconds": 1, "own": 1}]
    for n in range(1, 11):
        rows += [{"name": "data_wait", "step": n - 1, "start": n, "seconds": 0.2, "own": 0.2},
                 {"name": "forward", "step": n, "start": n + 0.2, "seconds": 0.7, "own": 0.7},
                 {"lane": f"loader {ATTACK}", "name": "decode", "step": n, "start": n, "seconds": 0.4},
                 {"lane": "queue", "name": "depth", "start": n, "value": 2}]  # fmt: skip
    (tmp_path / "spans" / "rank0.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "quarantine.csv").write_text(f"split,sample_id,name,reason\r\ntrain,3,{ATTACK}/a.jpg,not an image\r\n")
    lines = [
        "attempt,seconds,time_unix,interval_seconds,cpu,cpu0,rss_bytes,nic_eth0_sent_bytes,nic_lo_sent_bytes,gpu0_utilization,gpu0_throttle"
    ]
    lines += [f"1,{n},{1000 + n},1.0,0.5,0.{n % 10},1000000,{n * 1000},99,,none" for n in range(1, 31)]
    (tmp_path / "system.csv").write_text("\n".join(lines) + "\n")
    finding = {"id": "x", "title": ATTACK, "evidence": {"wait": 0.5}, "fix": "more workers", "gain": {"factor": 1.5}}
    (tmp_path / "findings.json").write_text(json.dumps({"verdict": f"data {ATTACK}", "findings": [finding, "odd"]}))
    return tmp_path


@pytest.mark.parametrize(
    ("use", "tile", "answer"),
    [
        ({}, ("device utilisation", "n/a"), "utilisation n/a, memory n/a"),
        (
            {"busy_fraction": 0.9, "utilization_mean": None},
            ("device busy", "90 %"),
            "busy 90 % of the wall clock (utilisation is read from a GPU's driver, which was not there)",
        ),
        (
            {"busy_fraction": 0.9, "utilization_mean": 0.8},
            ("device utilisation", "80 %"),
            "busy 90 %, utilisation 80 %",
        ),
    ],
)
def test_a_device_is_told_by_what_could_be_read_of_it(
    folder: Path, use: dict[str, Any], tile: tuple[str, str], answer: str
) -> None:
    details = details_of(folder, {**SUMMARY, "device_use": use})
    words = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", report_page(details)))
    assert " ".join(tile) in words or " ".join(reversed(tile)) in words
    assert ("device utilisation n/a" in words) == (not use)
    assert dict(answers(details))["Is the device used?"] == f"Test CPU: {answer}"


def test_a_page_has_everything_and_names_are_text(folder: Path) -> None:
    whole = report_page(details_of(folder, {**SUMMARY, "run": ATTACK}))
    assert whole.count("<script") == 1  # our own
    assert whole.count("<script>alert") == 0
    titles = [unescape(re.sub("<[^>]*>", "", each)) for each in re.findall(r"<figcaption>(.*?)</figcaption>", whole)]
    for title in ("The wall clock of the main thread", "Loss", "Accuracy", "Learning rate", "Step time", "Epoch by epoch",
                  "The main thread over the run", "How busy parallel lanes were", "Queues", "A close look: the first steps",
                  "CPU use", "Memory of the machine", "Network", "Step time against network use"):  # fmt: skip
        assert any(each.startswith(title) for each in titles), title
    assert not any(each.startswith("GPU") for each in titles)  # never read: no chart of zeros
    for anchor in ("time", "answers", "curves", "epochs", "timeline", "machine", "cost", "findings", "files", "setup"):
        assert f'id="{anchor}"' in whole
        assert f'href="#{anchor}"' in whole
    assert "http" not in re.sub(r"http-equiv", "", whole)  # nothing is loaded from anywhere
    assert "emulated" not in whole


def test_class_names_are_in_every_report(folder: Path) -> None:
    assert "Which classes?" not in dict(answers(details_of(folder)))  # of translation there are none
    names = [ATTACK, "cat|dog", "x" * 200, *(f"n{number:04d}" for number in range(997))]
    (folder / "classes.json").write_text(json.dumps(names))
    details = details_of(folder)
    told = dict(answers(details))["Which classes?"]
    assert told.startswith(f"1,000: {ATTACK}, cat|dog, xxx")
    assert told.endswith("…, n0996 (all in classes.json)")
    assert len(told) < 200
    whole = report_page(details)
    assert "<summary>1,000 classes</summary>" in whole
    assert all(unescape(whole).count(name) for name in names)  # the page has them all
    assert "<script>alert" not in whole
    assert "1,000: &lt;script" in report_markdown(details)
    assert "cat\\|dog" in report_markdown(details)
    (folder / "classes.json").write_text(json.dumps(names[1:2]))
    console = Console(width=120, record=True, file=StringIO())
    console.print(render(details_of(folder)))
    assert "1: cat|dog" in console.export_text()


@pytest.mark.parametrize("status", ["running", "failed", "stopped"])
def test_a_run_that_did_not_end_well_gives_its_cause(folder: Path, status: str) -> None:
    whole = report_page(details_of(folder, {**SUMMARY, "status": status, "cause": "the loss is NaN at step 12"}))
    assert "The loss is NaN at step 12" in whole
    assert f">{status}</span>" in whole


def test_a_run_killed_at_birth_gives_a_page(tmp_path: Path) -> None:
    run = Run(tmp_path, {"run": "x", "status": "failed", "cause": "killed"}, {}, {}, [], [])
    whole = report_page(read_details(run))
    assert "Killed" in whole
    assert "None" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", whole, flags=re.DOTALL)
    assert "# x: failed" in report_markdown(read_details(run))
    assert write_trace(run, tmp_path / "trace.json") == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []


def test_a_log_of_epochs_alone_has_curves(tmp_path: Path) -> None:
    rows = [
        {"attempt": "1", "epoch": str(n), "step": "", "train_loss": "1", "learning_rate": "0.1", "top1": "0.5"}
        for n in range(3)
    ]
    whole = report_page(read_details(Run(tmp_path, {"run": "x", "status": "completed"}, {}, {}, [], rows)))
    for title in ("Loss", "Accuracy", "Learning rate"):
        assert f"<figcaption>{title}</figcaption>" in whole


def test_an_emulated_run_says_so_everywhere(folder: Path) -> None:
    details = details_of(folder, {**SUMMARY, "device": {"name": "T4", "emulated": True}})
    whole = report_page(details)
    assert whole.count("emulated") >= 6
    told = dict(answers(details))
    assert "EMULATED" in told["How good is it?"]
    assert "the emulated device" in told["Where did the time go?"]
    assert "T4 (emulated)" in told["Is the device used?"]
    assert "EMULATED" in report_markdown(details)


def test_answers_of_a_measured_run(folder: Path) -> None:
    network = {
        "bytes_sent": 5_000_000,
        "bytes_received": 1,
        "peak_bits_per_second": 99e6,
        "link_bits_per_second": 100e6,
    }
    told = dict(answers(details_of(folder, {**SUMMARY, "network": network})))
    assert told["What did it cost?"] == "$1.25 (training nodes $1.25); $0.6250 per epoch"
    assert told["How long did loading take?"] == (
        "training waited 2 s; workers spent fetch 1.5 s, decode 2.5 s, augment 500 ms in parallel; "
        "75.0 % of samples from the cache"
    )
    assert told["Was the network the limit?"].startswith("yes, very likely: 5 MB sent, 1 B received, peak 99 Mb/s")
    assert told["What is the learning rate?"].startswith("cosine from 0.5 to 0: it falls slowly")
    assert told["Estimate against actual epoch?"].startswith("estimate 5 batches x 0.08 s")
    idle = {**network, "peak_bits_per_second": 9e6}
    assert dict(answers(details_of(folder, {**SUMMARY, "network": idle})))["Was the network the limit?"].startswith(
        "no: "
    )


def test_what_was_not_measured_is_na(folder: Path) -> None:
    told = dict(answers(details_of(folder)))
    assert told["Was the network the limit?"] == "n/a (traffic was not measured)"
    assert told["Is the device used?"] == "Test CPU: utilisation n/a, memory n/a"


def test_200_000_steps_make_a_small_page(tmp_path: Path) -> None:
    details = details_of(tmp_path)
    steps = [step(n)._replace(epoch=n // 1000) for n in range(1, 200_001)]
    system = [
        {"time_unix": str(1000 + n), "interval_seconds": "1", "cpu": "0.5", "nic_eth0_sent_bytes": "9"}
        for n in range(20_000)
    ]
    whole = report_page(replace(details, run=replace(details.run, steps=steps), system=system))
    assert len(whole) < 1_000_000


def test_steps_and_network_are_matched_by_time(folder: Path) -> None:
    details = details_of(folder)
    rates = network_rates(details.system)
    assert rates[0] == (1001.0, 8000.0)  # loopback is left out
    points = step_times_by_network(details.run.steps, rates)
    assert len(points) == 10
    assert points[4] == (40_000.0, 0.1)
    assert correlation(points) is None  # steps all took the same
    assert correlation([(float(n), 2.0 * n) for n in range(20)]) == pytest.approx(1.0)
    assert step_times_by_network([step(1_000_000)], rates) == []


def test_a_trace_for_perfetto(folder: Path) -> None:
    (folder / "spans" / "rank1.jsonl").write_text(
        '{"attempt":1,"started_unix":1002.0}\n{"name":"forward","step":1,"start":1,"seconds":2,"own":2}\n'
    )
    count = write_trace(details_of(folder).run, folder / "trace.json")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert len(events) == count
    assert all(event["ph"] in "XCMi" and isinstance(event["pid"], int) for event in events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 0): "main thread", (0, 1): f"loader {ATTACK}", (1, 0): "main thread"}
    first = next(e for e in events if e["name"] == "forward")
    assert (first["ts"], first["dur"], first["tid"], first["args"]) == (1.2e6, 0.7e6, 0, {"step": 1, "spans": 1})
    other = next(e for e in events if e["ph"] == "X" and e["pid"] == 1)
    assert other["ts"] == 3e6  # ranks share one clock
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {"queue depth", "cpu", "nic_eth0_sent_bytes"} <= counters
    assert "gpu0_utilization" not in counters
    assert not list(folder.glob(".*tmp"))


def test_markdown_for_pasting(folder: Path) -> None:
    text = report_markdown(details_of(folder, {**SUMMARY, "run": f"a|b {ATTACK} *x*", "cause": "c|d"}))
    assert text.startswith("# a\\|b &lt;script&gt;alert(1)&lt;/script&gt; \\*x\\*: completed\n")
    assert "| data wait | 2 s | 20.0 % |" in text
    assert "| training nodes | 2.5 hours | $1.25 |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 4)


def test_a_slow_start_does_not_hide_the_link(folder: Path) -> None:
    """On a busy host two thirds of a short run were its start, and the network was not the limit any more."""
    network = {"bytes_sent": 46e6, "bytes_received": 46e6, "peak_bits_per_second": 60e6, "link_bits_per_second": 91e6}
    time = {"wall_seconds": 80.0, "parts": {"startup": 70.0, "communication": 5.0, "forward": 5.0}}
    told = dict(answers(details_of(folder, {**SUMMARY, "network": network, "time": time})))
    assert told["Was the network the limit?"].startswith("yes, very likely: 50.0 % of the time after the start")


def test_pages_are_written_one_way() -> None:
    """docs/decisions/0011: no templates beside page.py."""
    sources = [path.read_text() for path in Path(page_room.__file__).parents[1].rglob("*.py")]
    assert not any("jinja2" in source for source in sources)
