"""A memory limit of a real control group, as a container has it: refused in words, or killed and then said and resumed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from training import DEADLINE_SECONDS, installed_command, summary, write_recipe

MIB = 2**20


class Container:
    """A control group with a memory limit, of version 1 or 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._limit = folder / ("memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes")

    def run(self, limit_bytes: int, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        self._limit.write_text(str(limit_bytes))
        enter = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"'
        return subprocess.run(
            ["sh", "-c", enter, "sh", *command], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )


@pytest.fixture
def container() -> Iterator[Container]:
    roots = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    for root in roots:
        folder = root / f"flatout-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / "memory.max").exists() or (folder / "memory.limit_in_bytes").exists():
            break
        folder.rmdir()
    else:
        pytest.skip("no control group with a memory limit can be made here")
    yield Container(folder)
    deadline = time.monotonic() + 30
    while True:  # the kernel lets go of a killed process a moment after its parent has heard of it
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _command(*arguments: object) -> list[str]:
    return [str(Path(sys.executable).with_name("flatout")), *map(str, arguments)]


def test_too_little_to_start_or_to_begin_is_refused(container: Container, work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes)
    done = container.run(64 * MIB, _command("train", config), work)
    assert done.returncode == 1, done.stderr
    assert "not enough memory to start" in done.stderr
    assert "the container allows 67.1 MB" in done.stderr
    done = container.run(300 * MIB, _command("train", config, "--set", "model.width=1.0"), work)
    assert done.returncode == 2, done.stderr
    assert "the container allows 315 MB" in done.stderr
    assert "lower model.width" in done.stderr
    assert not (work / "runs").exists()


def test_killed_for_its_memory_is_said_and_resumes(container: Container, work: Path, shapes: Path) -> None:
    """The kernel's killer leaves no time for words; whoever looks next says so, and the same command goes on."""
    config = write_recipe(work / "tiny.yaml", shapes, data__cache="off", train__checkpointing=False)
    grown = ["--set", "data.batch_size=156", "--set", "model.width=1.0"]
    grown += ["--set", "views={small: {base: train-64, size: 64, pad: 2}, plain: {base: eval-64, size: 16}}"]
    done = container.run(600 * MIB, _command("train", config, *grown), work)
    assert done.returncode == -9, (done.returncode, done.stderr)
    said = installed_command("runs", cwd=work)
    assert said.code == 0
    assert "failed" in said.out
    done = container.run(8192 * MIB, _command("train", config, *grown, "--set", "train.max_steps=1"), work)
    assert done.returncode == 0, done.stderr
    assert summary(work / "runs" / "tiny")["status"] in ("completed", "stopped")
