"""kill -9 inside the writing of a checkpoint, 200 times: 200 times the newest whole one loads."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from flatout.engine import checkpoint
from training import DEADLINE_SECONDS, forked, wait_until

KILLS = 200
ELEMENTS = 200_000


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {"model/weight": torch.full((ELEMENTS,), float(step)), "model/step": torch.tensor(step)}


def save_for_ever(folder: str, step: int) -> None:
    """What a run does at its checkpoints, and nothing else."""
    while True:
        step += 1
        checkpoint.save(Path(folder), step, tensors(step), {"metric": float(step % 7)})
        checkpoint.prune(Path(folder), 1, "higher")


def newest_name(folder: Path) -> str:
    return max((name for name in os.listdir(folder) if name.startswith("step-") and name.endswith("rs")), default="")


def save_and_kill(folder: str, result: str) -> None:
    """Runs in a process with torch imported and one thread, so that a writer is a mere fork of it."""
    torch.set_num_threads(1)
    chance, step, half_written = random.Random(0), 0, 0
    for number in range(KILLS):
        kill_at_a_random_moment(Path(folder), step, chance.uniform(0, 1.2))
        newest, names = newest_name(Path(folder)), os.listdir(folder)
        half_written += any(name.startswith("step-") and name.endswith(".tmp") for name in names)
        found, notes = checkpoint.load_newest(Path(folder))
        assert found is not None, f"nothing loads after kill {number}: {names}"
        assert (found.path.name, notes) == (newest, [])
        assert found.state["step"] > step
        step = found.state["step"]
        assert bool((found.tensors["model/weight"] == step).all())
        assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
    Path(result).write_text(str(half_written))


def kill_at_a_random_moment(folder: Path, step: int, share: float) -> None:
    """After two checkpoints of a new writer, a share of the time between them later."""
    writer = os.fork()
    if writer == 0:
        save_for_ever(str(folder), step)
    names, times = [newest_name(folder)], [time.perf_counter()]
    for _ in range(2):
        wait_until(lambda: newest_name(folder) > names[-1], "a checkpoint", pause_seconds=0.0005)
        names.append(newest_name(folder))
        times.append(time.perf_counter())
    moment = times[-1] + share * (times[-1] - times[-2])
    while time.perf_counter() < moment:
        pass
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)


@pytest.mark.slow
def test_two_hundred_kills_inside_a_checkpoint(tmp_path: Path) -> None:
    folder, result = tmp_path / "checkpoints", tmp_path / "half-written"
    folder.mkdir()
    with forked(save_and_kill, str(folder), str(result)) as helper:
        helper.join(DEADLINE_SECONDS)
        assert helper.exitcode == 0, "see the traceback of the helper process on stderr"
    half_written = int(result.read_text())
    assert half_written >= KILLS // 10, f"only {half_written} of {KILLS} kills left half a file: the test tests nothing"
    checkpoint.prune(folder, 1, "higher")
    assert len(checkpoint.list_saved(folder)) <= 3


def test_saving_over_a_stale_temporary(tmp_path: Path) -> None:
    (tmp_path / "step-000000003.tmp").write_bytes(b"half a checkpoint")
    checkpoint.save(tmp_path, 3, tensors(3), {})
    found, notes = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert (found.state["step"], notes) == (3, [])
    assert sorted(os.listdir(tmp_path)) == ["last.safetensors", "step-000000003.safetensors"]


@pytest.mark.parametrize("keep_top", [0, 1, 3])
def test_best_never_points_to_a_deleted_file(tmp_path: Path, keep_top: int) -> None:
    """Many epochs with the same accuracy: the one that is kept is the one that is pointed to."""
    for step in range(1, 9):
        checkpoint.save(tmp_path, step, {"model/step": torch.tensor(step)}, {"metric": 1.0})
        checkpoint.prune(tmp_path, keep_top, "higher")
        assert (tmp_path / "best.safetensors").exists()
        assert checkpoint.load(tmp_path / "best.safetensors").state["step"] == step


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_the_best_and_the_newest_two_are_kept(tmp_path: Path, better: str) -> None:
    for step, metric in enumerate([0.5, 0.9, 0.1, 0.4, None, 0.6, None], 1):
        checkpoint.save(tmp_path, step, {"model/step": torch.tensor(step)}, {"metric": metric})
        checkpoint.prune(tmp_path, 1, better)
    best = 2 if better == "higher" else 3
    assert [each.step for each in checkpoint.list_saved(tmp_path)] == [best, 6, 7]
    assert checkpoint.load(tmp_path / "best.safetensors").state["step"] == best
    assert checkpoint.load(tmp_path / "last.safetensors").state["step"] == 7
