"""Too little memory on the host: a line with the need and what to lower, and a final status; never a segfault."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flatout.errors import NoSpace
from flatout.machine.available_memory import Limit, is_out_of_memory, require_memory
from training import DEADLINE_SECONDS, forked, summary, write_recipe

MIB = 2**20


def _train_with(more_bytes: int, config: str, folder: str, settings: list[str]) -> None:
    """What torch has mapped already is not counted, so that a limit means the same on every machine."""
    os.chdir(folder)
    most = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 2)
    sys.argv = ["flatout", "train", config, *settings]
    from flatout.cli.main import run

    run()


def trained_within(more_bytes: int, config: Path, work: Path, *settings: str) -> tuple[int, str]:
    with forked(_train_with, more_bytes, str(config), str(work), list(settings)) as process:
        process.join(DEADLINE_SECONDS)
        return process.exitcode, (work / "said.txt").read_text()


@pytest.mark.parametrize("more", [16, 40, 64])
def test_too_little_to_begin_is_refused(work: Path, shapes: Path, more: int) -> None:
    code, said = trained_within(more * MIB, write_recipe(work / "tiny.yaml", shapes), work)
    assert code == 2, said
    (line,) = said.splitlines()
    for words in ("needs at least 1", " MB more memory, but ulimit -v allows ", "lower model.width, data.batch_size"):
        assert words in line
    assert not (work / "runs").exists()


def test_too_little_for_a_step_is_said(work: Path, shapes: Path) -> None:
    config = write_recipe(
        work / "tiny.yaml", shapes, model__width=1.0, data__batch_size=156, train__checkpointing=False
    )
    view = "views={small: {base: train-64, size: 128, pad: 2}, plain: {base: eval-64, size: 16}}"
    code, said = trained_within(700 * MIB, config, work, "--set", view)
    assert code == 1, said
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    for words in ("this host ran out of memory after step 0, with data.batch_size = 156", "ulimit -v allows", "lower "):
        assert words in line
    assert summary(work / "runs" / "tiny")["status"] == "failed"


@pytest.mark.parametrize("most", [100, 300, 600])
def test_too_little_to_start_is_one_line(work: Path, shapes: Path, most: int) -> None:
    config = write_recipe(work / "tiny.yaml", shapes)
    line = f'ulimit -v {most * 1024}; exec "{Path(sys.executable).with_name("flatout")}" train {config}'
    done = subprocess.run(["sh", "-c", line], cwd=work, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 1
    assert "not enough memory to start" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (work / "runs").exists()


def test_a_container_is_a_limit_too() -> None:
    limit = Limit("the container", 512 * MIB, 400 * MIB)
    with pytest.raises(NoSpace, match="at least 134 MB more memory, but the container allows 537 MB, of which 419 MB"):
        require_memory(0, "resnet18", limit)
    require_memory(0, "resnet18", Limit("the container", 512 * MIB, 300 * MIB))
    require_memory(10**12, "resnet18", None)


@pytest.mark.parametrize(
    ("error", "within_limit", "without"),
    [
        (MemoryError(), True, True),
        (OSError(12, "Cannot allocate memory"), True, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True, True),
        (RuntimeError("could not create a primitive"), True, False),
        (RuntimeError("can't start new thread"), True, False),
        (RuntimeError("shape mismatch"), False, False),
        (OSError(2, "No such file"), False, False),
    ],
)
def test_which_errors_mean_memory(error: Exception, within_limit: bool, without: bool) -> None:
    limit = Limit("ulimit -v", 1, 1)
    assert (is_out_of_memory(error, limit), is_out_of_memory(error, None)) == (within_limit, without)
