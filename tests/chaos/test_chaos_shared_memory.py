"""/dev/shm, tiny or left by a kill: each test in a mount namespace of its own, so that nobody else's is touched."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from training import (
    DEADLINE_SECONDS,
    Finished,
    assert_same_training,
    command,
    row_count,
    summary,
    wait_until,
    write_recipe,
)


class Namespace:
    """Commands in it see a /dev/shm, small, read-only or missing, that nobody else sees."""

    def __init__(self, holder: "subprocess.Popen[str]") -> None:
        self._holder = holder

    def start(self, *arguments: object, **environment: str) -> "subprocess.Popen[str]":
        flatout = Path(sys.executable).with_name("flatout")
        return subprocess.Popen(
            ["nsenter", "--target", str(self._holder.pid), "--mount", flatout, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )

    def shared_memory(self) -> list[str]:
        return os.listdir(f"/proc/{self._holder.pid}/root/dev/shm")

    def used_bytes(self) -> int:
        """By files with and without a name."""
        found = os.statvfs(f"/proc/{self._holder.pid}/root/dev/shm")
        return (found.f_blocks - found.f_bfree) * found.f_frsize


WITHOUT = """
old=$(mktemp -d) && mount --bind /dev $old && mount -t tmpfs tmpfs /dev && ln -s /proc/self/fd /dev/fd &&
for name in null zero random urandom; do touch /dev/$name && mount --bind $old/$name /dev/$name; done
"""


def _script(kind: str) -> str:
    return WITHOUT.strip() if kind == "missing" else f"mount -t tmpfs -o {kind} tmpfs /dev/shm"


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    script = f"{_script(request.param)} && echo ready && exec cat"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], text=True, **pipes) as holder:
        assert holder.stdout
        answer = holder.stdout.readline().strip()
        if answer == "ready":
            yield Namespace(holder)
        holder.kill()
    if answer != "ready":
        pytest.skip(f"no mount namespace here: {answer}")


@pytest.mark.parametrize("namespace", ["size=16k"], indirect=True)
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
@pytest.mark.parametrize("namespace", ["size=64m"], indirect=True)
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


@pytest.mark.parametrize("options", [{"data__workers": 1, "data__worker_kind": "process"}, {"data__shared": "auto"}])
@pytest.mark.parametrize("namespace", ["ro", "missing"], indirect=True)
def test_none_of_it_is_a_note(
    work: Path, shapes: Path, tmp_path: Path, namespace: Namespace, options: dict[str, object], uninterrupted: Path
) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, **options), work / "runs" / "tiny"
    with namespace.start("train", config, "--run", run, XDG_RUNTIME_DIR=str(tmp_path)) as running:
        _, err = running.communicate(timeout=DEADLINE_SECONDS)
    assert running.returncode == 0, err
    assert err.count("buffers are mapped from") == 1, err
    assert "/dev/shm" in err
    assert_same_training(run, uninterrupted)
    if "data__shared" in options:
        assert summary(run)["shared"]["hits"] > 0
