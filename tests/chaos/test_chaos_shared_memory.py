"""/dev/shm, tiny or left by a kill: each test in a mount namespace of its own, so that nobody else's is touched."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from training import DEADLINE_SECONDS, Finished, command, row_count, summary, wait_until, write_recipe


class Namespace:
    """Commands in it see a /dev/shm of `size` that nobody else sees."""

    def __init__(self, holder: "subprocess.Popen[str]") -> None:
        self._holder = holder

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        flatout = Path(sys.executable).with_name("flatout")
        return subprocess.Popen(
            ["nsenter", "--target", str(self._holder.pid), "--mount", flatout, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def shared_memory(self) -> list[str]:
        return os.listdir(f"/proc/{self._holder.pid}/root/dev/shm")

    def used_bytes(self) -> int:
        """By files with and without a name."""
        found = os.statvfs(f"/proc/{self._holder.pid}/root/dev/shm")
        return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    script = f"mount -t tmpfs -o size={request.param} tmpfs /dev/shm && echo ready && exec cat"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], text=True, **pipes) as holder:
        assert holder.stdout
        answer = holder.stdout.readline().strip()
        if answer == "ready":
            yield Namespace(holder)
        holder.kill()
    if answer != "ready":
        pytest.skip(f"no mount namespace here: {answer}")


@pytest.mark.parametrize("namespace", ["16k"], indirect=True)
def test_too_little_of_it_is_a_cause_not_a_crash(work: Path, shapes: Path, namespace: Namespace) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, data__workers=2, data__worker_kind="process")
    run = work / "runs" / "tiny"
    with namespace.start("train", config, "--run", run) as running:
        out, err = running.communicate(timeout=DEADLINE_SECONDS)
    finished = Finished(running.returncode, out, err)
    assert finished.code == 2
    assert "/dev/shm" in finished.last_line
    assert "data.worker_kind=thread" in finished.last_line
    command("runs", cwd=work)
    assert summary(run)["status"] == "failed"
    assert "/dev/shm" in summary(run)["cause"]
    assert namespace.used_bytes() == 0


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("namespace", ["64m"], indirect=True)
def test_a_kill_gives_all_of_it_back(work: Path, shapes: Path, namespace: Namespace, steps: int) -> None:
    """While the workers start, which is when the first buffer is there, and while they work."""
    config = write_recipe(work / "tiny.yaml", shapes, data__workers=4, data__worker_kind="process")
    run = work / "runs" / "tiny"
    with namespace.start("train", config, "--run", run) as running:
        wait_until(
            lambda: (namespace.used_bytes() and row_count(run) >= steps) or running.poll() is not None,
            "a worker's buffer",
            pause_seconds=0.0005,
        )
        assert namespace.used_bytes() > 0
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: namespace.used_bytes() == 0, "shared memory to be given back", 60)
    assert namespace.shared_memory() == []
