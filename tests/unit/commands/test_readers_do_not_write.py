"""Who opens a run to look at it changes nothing in it: finished, killed and running ones, by every command that looks."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatout.cli import register
from flatout.cli.main import app
from flatout.commands.explain import explain
from flatout.config.loading import dump_config, load_config
from flatout.runs import RunDirectory, read_run
from flatout.runs.directory import write_json, write_text
from flatout.runs.steps import STEP_COLUMNS, StepRow
from flatout.runs.tables import EPOCH_COLUMNS, Table

USD_PER_HOUR = 3.6
STEPS = 20
WALL_SECONDS = 1 + STEPS * 1.0
READERS = {
    "runs": ["runs", "."],
    "runs --json": ["runs", ".", "--json"],
    "report": ["report", "run", "--html", "elsewhere/page.html"],
    "report --json": ["report", "run", "--json", "--html", "elsewhere/page.html"],
    "report --markdown": ["report", "run", "--markdown", "--html", "elsewhere/page.html"],
    "compare": ["compare", "run", "other"],
    "compare --json": ["compare", "other", "run", "--json", "--html", "elsewhere/compare.html"],
    "predict --score": ["predict", ".", "--score"],
    "config show": ["config", "show", "run/config.yaml"],
}
WRITERS = {  # a command -> the one file of a run that it is there to write
    "report": (["report", "run"], "report.html"),
    "report --json": (["report", "run", "--json"], "report.html"),
    "report --trace": (["report", "run", "--trace", "--html", "elsewhere/page.html"], "trace.json"),
    "predict": (["predict", "run", "--if", "data.workers=2"], "predictions.jsonl"),
    "explain": (["explain", "run"], "findings.json"),
}


def make_run(root: Path, status: str) -> RunDirectory:
    """Steps of a second, half of it waiting for data, on a machine with a price."""
    directory = RunDirectory(root)
    directory.spans.mkdir(parents=True)
    changes = {"name": root.name, "data.path": "data", "data.workers": 1, "data.batch_size": 8, "train.epochs": 4}
    write_text(directory.config, dump_config(load_config({}, {**changes, "cost.usd_per_hour": USD_PER_HOUR}).config))
    write_json(directory.environment, {"device": {"kind": "cpu", "name": "CPU"}, "cpu": {"cores_usable": 2}})
    lines = ['{"attempt": 1, "started_unix": 1000}', span("startup", 0, 0.0, 1.0)]
    steps, epochs = Table(directory.steps, STEP_COLUMNS), Table(directory.epochs, EPOCH_COLUMNS)
    for n in range(STEPS):
        row = StepRow(1, n + 1, n // 10, n % 10, 8, "x", 2.0 - 0.05 * n, 0.1, 1.0, 0.5, 1001.0 + n, 0.4)
        steps.append(row._asdict())
        lines += [span("data_wait", n, 1.0 + n, 0.5), span("forward", n + 1, 1.5 + n, 0.5)]
        lines.append(json.dumps({"lane": "worker-0", "name": "decode", "step": n, "start": 1.0 + n, "seconds": 0.9}))
    epochs.append({"attempt": 1, "epoch": 0, "step": 10, "train_loss": 1.8, "val_loss": 1.9, "top1": 0.3})
    (directory.spans / "rank0.jsonl").write_text("\n".join(lines) + "\n")
    directory.system.write_text("attempt,seconds,time_unix,interval_seconds,cpu\n1,1,1001,1,0.5\n1,2,1002,1,0.5\n")
    cost = {"total_usd": WALL_SECONDS / 3600 * USD_PER_HOUR, "lines": [], "prices_dated": "2026-11"}
    time = {"wall_seconds": WALL_SECONDS, "parts": {"startup": 1.0, "data_wait": 10.0, "forward": 10.0}}
    data = {"samples_total": 80, "fetch_seconds": 1.0, "decode_seconds": 18.0, "augment_seconds": 0.0}
    summary = {"run": root.name, "status": status, "attempts": 1, "samples_seen": 160, "time": time, "data": data}
    write_json(directory.summary, {**summary, "cost": cost if status == "completed" else None})
    steps.close()
    epochs.close()
    return directory


def span(name: str, step: int, start: float, seconds: float) -> str:
    return json.dumps({"name": name, "step": step, "start": start, "seconds": seconds, "own": seconds})


def digest(root: Path) -> dict[str, tuple[str, int]]:
    """Name, content and time of every file."""
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(params=["finished", "killed", "running"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    make_run(tmp_path / "other", "completed")
    directory = make_run(tmp_path / "run", "completed" if request.param == "finished" else "running")
    if request.param == "running":
        directory.lock()
    yield tmp_path / "run"
    directory.unlock()


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("reader", READERS)
def test_looking_changes_nothing(run: Path, reader: str) -> None:
    before = digest(run)
    assert call(*READERS[reader])
    assert digest(run) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_command_writes_the_file_it_is_there_for_and_no_other(run: Path, writer: str) -> None:
    arguments, own = WRITERS[writer]
    before = digest(run)
    call(*arguments)
    after = digest(run)
    assert after.pop(own)
    assert after == before


def test_a_library_call_changes_nothing(run: Path) -> None:
    before = digest(run)
    assert explain(run).verdict
    assert explain(read_run(run)).verdict
    assert digest(run) == before


def test_a_killed_run_has_its_cost_whoever_reads_it(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "running")
    summary = read_run(tmp_path / "run").summary
    assert (summary["status"], summary["samples_seen"]) == ("failed", 160)
    assert summary["cost"]["total_usd"] == pytest.approx(WALL_SECONDS / 3600 * USD_PER_HOUR)


def test_an_explanation_of_a_killed_run_has_dollars(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "running")
    priced = [finding for finding in explain(tmp_path / "run").findings if finding.gain is not None]
    assert priced
    for finding in priced:
        assert finding.usd == pytest.approx(finding.saved_seconds / 3600 * USD_PER_HOUR)
