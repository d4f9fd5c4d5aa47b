"""`flatout report` and `flatout runs` as a user gives them, on any machine that has the run's files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from training import DEADLINE_SECONDS, command

REFUSE_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
from flatout.cli.main import run

for arguments in COMMANDS:
    sys.argv = ["flatout", *arguments]
    run()
assert "torch" not in sys.modules
"""


@pytest.fixture
def copied(uninterrupted: Path, work: Path) -> Path:
    shutil.copytree(uninterrupted, work / "runs" / "tiny", symlinks=True)
    return work / "runs" / "tiny"


def test_reports_without_torch(copied: Path) -> None:
    commands = [["report", "runs/tiny"], ["report", "runs/tiny", "--markdown", "--trace"],
                ["report", "runs/tiny", "--json"], ["runs"], ["runs", "--json"]]  # fmt: skip
    script = REFUSE_TORCH.replace("COMMANDS", repr(commands))
    done = subprocess.run([sys.executable, "-c", script], cwd=copied.parent.parent, capture_output=True, text=True,
                          timeout=DEADLINE_SECONDS, env={**os.environ, "COLUMNS": "200"}, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "where the time went" in done.stdout
    assert (copied / "report.html").stat().st_size > 50_000
    assert json.loads((copied / "trace.json").read_text())["traceEvents"]


def test_a_report_as_json_answers_every_question(copied: Path) -> None:
    finished = command("report", copied, "--json", cwd=copied.parent)
    told = json.loads(finished.out)
    assert told["convergence"]["verdict"] == "too early"  # two epochs
    assert told["convergence"]["alarms"] == []
    assert told["learning_rate"]["schedule"].startswith("cosine from 0.05 to 0 over 20 steps after 20 warm-up steps")
    assert len(told["answers"]) >= 15
    assert [row["epoch"] for row in told["epochs"]] == [0, 1]
    for row in told["epochs"]:
        parts = ("estimate", "data_wait", "warm_up", "uneven_steps", "validation", "checkpoint", "other")
        assert sum(row[name] for name in parts) == pytest.approx(row["actual"])
    startup = told["time"]["parts"]["startup"]
    assert startup + sum(row["actual"] for row in told["epochs"]) == pytest.approx(
        told["time"]["wall_seconds"], rel=0.05
    )
    assert told["written"] == {"page": str(copied / "report.html")}


def test_the_end_of_training_leaves_page_and_trace(uninterrupted: Path) -> None:
    assert (uninterrupted / "report.html").exists()
    assert json.loads((uninterrupted / "trace.json").read_text())["traceEvents"]


def test_where_the_page_goes(copied: Path) -> None:
    (copied / "report.html").unlink()
    finished = command("report", copied, "--html", "my page.html", cwd=copied.parent)
    assert finished.code == 0
    assert (copied.parent / "my page.html").exists()
    assert not (copied / "report.html").exists()
    assert "my page.html" in finished.out
    refused = command("report", copied, "--html", "no/such/folder/x.html", cwd=copied.parent)
    assert refused.code == 2
    assert "cannot write no/such/folder/x.html: No such file or directory" in refused.error_line
    assert command("report", copied.parent, cwd=copied.parent).code == 2
