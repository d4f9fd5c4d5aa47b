"""A long emulated training takes no more descriptors, threads or memory at its end than soon after its start.

`make test` trains for some seconds; FLATOUT_FLAT_SECONDS=3600 (`make soak`) for an hour.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from training import STEPS_PER_EPOCH, start, summary, wait_until, write_recipe

SECONDS = float(os.environ.get("FLATOUT_FLAT_SECONDS", "2.5"))
STEP_SECONDS = 0.002
WARM_UP_EPOCHS = 15  # 300 steps: as many shared batches as are kept mapped


@dataclass(frozen=True)
class Reading:
    descriptors: int
    threads: int
    memory_bytes: int


def last_step(run: Path) -> int:
    """Of steps.csv, by its end: two million rows are not counted 20 times a second."""
    path = run / "steps.csv"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        rows = file.read().split(b"\n")[1:-1]  # whole ones, without the header
    return int(rows[-1].split(b",")[1]) if rows else 0


def read(pid: int) -> Reading:
    process = psutil.Process(pid)
    with process.oneshot():
        return Reading(process.num_fds(), process.num_threads(), process.memory_info().rss)


def test_descriptors_threads_and_memory_are_flat(work: Path, shapes: Path, tmp_path: Path) -> None:
    epochs = WARM_UP_EPOCHS + int(SECONDS / STEP_SECONDS / STEPS_PER_EPOCH)
    config = write_recipe(
        work / "tiny.yaml", shapes, device="emulated", emulated={"base_seconds": STEP_SECONDS}, train__epochs=epochs,
        data__workers=2, data__shared="auto", checkpoint__every_steps=None, checkpoint__every_epochs=5,
        validate__every_epochs=5, monitor__interval_seconds=0.5,
    )  # fmt: skip
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
    wait_until(lambda: last_step(run) >= WARM_UP_EPOCHS * STEPS_PER_EPOCH or not running.running, "the warm-up")
    early = [read(running.pid) for _ in range(5)]
    late_step = (epochs - 2) * STEPS_PER_EPOCH
    wait_until(lambda: last_step(run) >= late_step or not running.running, "the end", 3600 + SECONDS * 10, 0.05)
    assert running.running, "it ended before it was looked at"
    late = [read(running.pid) for _ in range(5)]
    running.send(signal.SIGTERM)
    ended = running.wait()
    assert ended.code in (0, 130), ended.err
    assert summary(run)["samples_seen"] >= (epochs - 2) * 156
    assert min(each.descriptors for each in late) <= max(each.descriptors for each in early) + 2
    assert min(each.threads for each in late) <= max(each.threads for each in early) + 1
    growth = min(each.memory_bytes for each in late) - max(each.memory_bytes for each in early)
    steps = late_step - WARM_UP_EPOCHS * STEPS_PER_EPOCH
    assert growth < (16 << 20) + 64 * steps, f"{growth} bytes more after {steps} steps"
