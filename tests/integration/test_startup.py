"""What a run needs before its first step, and what it says about it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.timeline.startup import STARTUP_PARTS
from training import DEADLINE_SECONDS, command, installed_command, summary, write_recipe

_TRAIN = """
import sys
from flatout.commands.train import train_run
assert train_run(sys.argv[1]).summary["status"] == "completed"
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "muon"])
def test_steps_do_not_import_the_compiler(work: Path, shapes: Path, optimizer: str) -> None:
    """torch's own optimizers do, at their first call: as long as importing torch takes."""
    config = write_recipe(
        work / "tiny.yaml", shapes, train__max_steps=2, train__optimizer=optimizer, train__ema=0.9, train__clip_norm=1.0
    )
    command = [sys.executable, "-c", _TRAIN, str(config)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    assert done.stdout.split()[-1] == "False"


def test_the_start_is_shown_in_parts(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, train__max_steps=2)
    before = time.time()
    finished = installed_command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    took = summary(work / "runs/tiny")["time"]
    parts = took["startup_parts"]
    assert list(parts) == list(STARTUP_PARTS)
    assert parts["imports"] == took["import_seconds"] > 0
    assert min(parts["listing"], parts["model"], parts["first_batch"]) > 0
    assert sum(parts.values()) == pytest.approx(took["parts"]["startup"] + parts["first_batch"], abs=1e-3)
    assert took["wall_seconds"] <= time.time() - before + 0.02  # the process is not older than the command; one tick
    assert "to the first batch: imports" in " ".join(command("report", "runs/tiny", cwd=work).out.split())
