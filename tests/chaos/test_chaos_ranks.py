"""Ranks that die, hang or train by themselves: the others end with a cause, and the run goes on from one step."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from ranks import places, run_ranks, start_ranks, torchrun
from training import (
    assert_ledger,
    assert_same_training,
    forked,
    row_count,
    summary,
    wait_until,
    write_recipe,
)

KILLS = int(os.environ.get("FLATOUT_RANK_KILLS", "2"))  # `make soak-ranks` asks for 20
DDP = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False}


@pytest.fixture(scope="module")
def undisturbed(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-ranks")
    config = write_recipe(folder / "tiny.yaml", shapes, **DDP, train__epochs=max(2, KILLS))
    ended = run_ranks(2, "train", config, cwd=folder)
    assert [each.code for each in ended] == [0, 0], ended[0].err
    return folder / "runs" / "tiny"


@pytest.mark.slow
def test_torchrun_restarts_ranks_that_are_killed(work: Path, shapes: Path, undisturbed: Path) -> None:
    """kill -9 of either rank at random steps; the agent starts both again, from a checkpoint they agree on."""
    epochs, chance = max(2, KILLS), random.Random(5)
    config = write_recipe(work / "tiny.yaml", shapes, **DDP, train__epochs=epochs)
    run = work / "runs" / "tiny"
    agent = torchrun("train", config, ranks=2, cwd=work, max_restarts=KILLS)
    try:
        for number in range(KILLS):
            wanted = row_count(run) + chance.randint(2, 9)
            wait_until(lambda wanted=wanted: row_count(run) >= wanted or agent.poll() is not None, "more steps")
            assert agent.poll() is None, (work / "torchrun.txt").read_text()
            victims = _ranks_of(agent.pid)
            os.kill(victims[chance.randrange(2)], signal.SIGKILL)
            wait_until(lambda gone=victims: not any(map(psutil.pid_exists, gone)), f"restart {number + 1}")
        assert agent.wait(600) == 0, (work / "torchrun.txt").read_text()
    finally:
        _end(agent.pid)
    assert_same_training(run, undisturbed)
    assert_ledger(run, batch_size=16, epochs=epochs)
    assert summary(run)["attempts"] == KILLS + 1


def _ranks_of(agent: int) -> list[int]:
    """Both ranks, once both are there."""

    def found() -> list[int]:
        children = psutil.Process(agent).children()
        return [child.pid for child in children if "flatout" in " ".join(child.cmdline())]

    return wait_until(lambda: found() if len(found()) == 2 else None, "two ranks")


def _end(agent: int) -> None:
    if psutil.pid_exists(agent):
        for process in [*psutil.Process(agent).children(recursive=True), psutil.Process(agent)]:
            process.kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named(work: Path, shapes: Path, undisturbed: Path, victim: int) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, **DDP, train__epochs=max(2, KILLS)), work / "runs" / "tiny"
    running = start_ranks(2, "train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 7 or not running[victim].running, "some steps")
    running[victim].kill()
    other = running[1 - victim].wait()
    assert other.code == 1
    assert f"rank {victim} " in other.last_line
    ended = summary(run)
    assert ended["status"] == "failed"
    assert f"rank {victim} " in ended["cause"]
    resumed = run_ranks(2, "train", config, cwd=work)
    assert [each.code for each in resumed] == [0, 0], resumed[0].err
    assert_same_training(run, undisturbed)


def test_a_stopped_rank_is_detected_with_its_last_span_and_stack(work: Path, shapes: Path) -> None:
    options = {**DDP, "parallel__silence_seconds": 4, "train__epochs": 1000}
    config, run = write_recipe(work / "tiny.yaml", shapes, **options), work / "runs" / "tiny"
    running = start_ranks(2, "train", config, cwd=work)
    wait_until(lambda: row_count(run) >= 60 or not running[1].running, "steps, and several signs of life")
    running[1].send(signal.SIGSTOP)
    stopped = time.monotonic()
    assert running[0].wait().code == 1
    assert time.monotonic() - stopped < 60, "the deadline is 4 s"
    cause = summary(run)["cause"]
    assert summary(run)["status"] == "failed"
    for word in ("rank 1 was not heard of for", "parallel.silence_seconds = 4", f"process {running[1].pid} on ",
                 "last seen in ", "of step ", ".py:", " < ", "the same command resumes"):  # fmt: skip
        assert word in cause, (word, cause)
    running[1].kill()


def _train_unwrapped(place: dict[str, str], config: str, folder: str, sabotage: str) -> None:
    os.environ.update(place)
    os.chdir(folder)
    from flatout.engine.parallel.gradients import GradientExchange
    from flatout.engine.parallel.model_sync import ModelSync

    if sabotage == "never-exchanged":  # story C: the loss comes from the model inside, not from the wrapped one
        GradientExchange.sync_next = lambda self, wanted: setattr(self.wrapped, "require_backward_grad_sync", False)
    elif place["RANK"] == "1":
        compare = ModelSync.compare

        def unwrapped(self: ModelSync, *rest: object) -> None:
            self._learner.wrapped = self._learner.compute
            compare(self, *rest)

        ModelSync.compare = unwrapped
    sys.argv = ["flatout", "train", config]
    from flatout.cli.main import run

    run()


@pytest.mark.parametrize(
    ("sabotage", "said"),
    [
        ("never-exchanged", "rank(s) [1] hold other weights than rank 0 after step 1"),
        ("unwrapped", "the model of rank(s) [1] is not wrapped"),
    ],
)
def test_ranks_that_do_not_train_the_same_model_are_caught(work: Path, shapes: Path, sabotage: str, said: str) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **DDP)
    pairs = [forked(_train_unwrapped, place, str(config), str(work), sabotage) for place in places(2)]
    processes = [each.__enter__() for each in pairs]
    for process in processes:
        process.join(300)
    codes = [process.exitcode for process in processes]
    for each in pairs:
        each.__exit__(None, None, None)
    assert codes == [1, 1]
    assert said in summary(work / "runs" / "tiny")["cause"]


def test_a_loss_that_is_not_finite_on_one_rank_stops_all(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, **{**DDP, "train__lr": 1e30, "train__warmup_epochs": 0})
    ended = run_ranks(2, "train", config, cwd=work)
    assert [each.code for each in ended] == [1, 1]
    assert "not finite" in ended[0].last_line or "the loss is" in ended[0].last_line
    assert (work / "runs" / "tiny" / "bad_batch.json").exists()
