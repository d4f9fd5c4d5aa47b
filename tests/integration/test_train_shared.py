"""Whole runs that share their batches are equal, to the bit, to a run that does not."""

import json
import os
import signal
from pathlib import Path

import pytest

from flatout.commands.simulate import simulate
from flatout.service.coordinator.policy import Policy
from flatout.service.transport.paths import ServicePaths, service_paths
from sharing import Checker, in_order, make_plan, read_epochs, service, shared
from training import (
    STEPS_PER_EPOCH,
    assert_ledger,
    assert_same_training,
    command,
    row_count,
    start,
    summary,
    wait_until,
    write_recipe,
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicePaths:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return service_paths()


def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_jobs_with_0_1_4_and_16_workers_together(shapes: Path, uninterrupted: Path, work: Path, tmp_path: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, data__shared="auto")
    running = {
        workers: start(
            "train",
            config,
            "--set",
            f"data.workers={workers}",
            "--run",
            f"runs/{workers}",
            cwd=work,
            environment=environment(tmp_path),
        )
        for workers in (0, 1, 4, 16)
    }
    made = []
    for workers, job in running.items():
        finished = job.wait()
        assert finished.code == 0, finished.err
        run = work / "runs" / str(workers)
        assert_same_training(run, uninterrupted)
        used = summary(run)["shared"]
        made.append(used["service_made"] + used["local"] + used["alone"])
        assert used["hits"] + used["local"] + used["alone"] == 2 * STEPS_PER_EPOCH
        assert used["hits"]
        assert used["busy_answers"] <= used["asks"]
        assert used["most_asks_per_batch"] <= 10
        assert summary(run)["cost"]["total_usd"] is None or summary(run)["cost"]["lines"]
    assert max(made) >= STEPS_PER_EPOCH, "each batch was made by somebody, if before the last job was there"


def test_killed_and_resumed(shapes: Path, uninterrupted: Path, work: Path, tmp_path: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, data__shared="auto")
    running = start("train", config, cwd=work, environment=environment(tmp_path))
    run = work / "runs" / "tiny"
    wait_until(lambda: row_count(run) >= STEPS_PER_EPOCH - 4 or not running.running, "most of the first epoch")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    finished = command("train", config, cwd=work, environment=environment(tmp_path))
    assert finished.code == 0, finished.err
    assert_same_training(run, uninterrupted)
    assert_ledger(run)
    told = json.loads((run / "resolved.json").read_text())
    assert [each["attempt"] for each in told["attempts"]] == [1, 2]  # the first one's are still there
    assert all(each["decided"]["data"]["worker_kind"]["value"] == "shared" for each in told["attempts"])


def test_a_job_that_joins_at_the_window_reads_every_batch_once(shapes: Path, place: ServicePaths) -> None:
    """Where the window is, the service knows from what the first job asks for: on a busy machine perhaps only once."""
    plan = make_plan(shapes)
    count = plan.batches_per_epoch
    started_at = []
    while not any(started_at) and len(started_at) < 10:
        with shared(shapes) as (first, _):
            ahead = first.epoch(0)
            for _ in range(7):
                next(ahead)
            with shared(shapes, shared_start="window") as (second, pool):
                epoch, start = pool.summary()["order_begins_at"]
                assert epoch == 0
                seen = read_epochs(second, range(2), Checker(plan))
        started_at.append(start)
        order = [(start + index) % count for index in range(count)]
        assert seen == [(epoch, index) for epoch in range(2) for index in order]
    assert 0 < started_at[-1] <= 8


def test_jobs_that_cannot_share_are_told(shapes: Path, place: ServicePaths) -> None:
    with shared(shapes), shared(shapes, batch_size=4) as (loader, _):
        assert any("nothing is shared with them: their batch_size differ" in note for note in loader.notes)


def test_a_recorded_trace_is_decided_again(shapes: Path, place: ServicePaths, tmp_path: Path) -> None:
    plan, trace = make_plan(shapes), tmp_path / "trace.jsonl"
    with service(place, Policy(300_000), trace), shared(shapes) as (first, _), shared(shapes) as (second, _):
        lagging = second.epoch(0)
        next(lagging)
        assert read_epochs(first, range(2), Checker(plan)) == in_order(plan, range(2))
        for _ in lagging:
            pass
    replayed = simulate(trace)
    assert replayed["decisions"] > 2 * plan.batches_per_epoch
    assert replayed["different"] == []


def test_commands(shapes: Path, place: ServicePaths, work: Path, tmp_path: Path) -> None:
    missing = command("cache", cwd=work, environment=environment(tmp_path))
    assert missing.code == 1
    assert "flatout serve" in missing.error_line
    serving = start("serve", "--bytes", "64MB", "--threads", "1", "--json", cwd=work, environment=environment(tmp_path))
    wait_until(place.socket.exists, "flatout serve")
    with shared(shapes) as (loader, _):
        for _ in loader.epoch(0):
            pass
        shown = command("cache", cwd=work, environment=environment(tmp_path))
        assert shown.code == 0, shown.err
        assert "batches served" in shown.out
        counts = json.loads(command("cache", "--json", cwd=work, environment=environment(tmp_path)).out)["counts"]
        assert counts["hits"] + counts["waited"] >= STEPS_PER_EPOCH
    assert '"ready": 0' in command("cache", "clear", "--json", cwd=work, environment=environment(tmp_path)).out
    assert command("serve", cwd=work, environment=environment(tmp_path)).code != 0, "one service for each user"
    assert command("cache", "stop", cwd=work, environment=environment(tmp_path)).code == 0
    finished = serving.wait()
    assert finished.code == 0, finished.err
    assert '"made"' in finished.out


def test_simulate(work: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "simulations" / "shared.yaml"
    text = recipe.read_text(encoding="utf-8").replace("batches_per_epoch: 391", "batches_per_epoch: 40")
    (work / "small.yaml").write_text(text, encoding="utf-8")
    shown = command("simulate", "small.yaml", cwd=work)
    assert shown.code == 0, shown.err
    assert "independent" in shown.out
    (work / "wrong.yaml").write_text(text.replace("hands", "hand"), encoding="utf-8")
    wrong = command("simulate", "wrong.yaml", cwd=work)
    assert wrong.code == 2
    assert "producers.hands" in wrong.error_line


def test_ranks_share_and_take_their_own_slices(shapes: Path, work: Path, tmp_path: Path) -> None:
    """31 of 156 samples a step: uneven slices, and a last batch of one sample, of which a rank gets none."""
    config = write_recipe(
        work / "tiny.yaml",
        shapes,
        parallel__mode="ddp",
        parallel__devices=2,
        data__batch_size=256,
        data__global_batch=31,
        views__small={"base": "train-64", "size": 16, "pad": 2, "mixup": 0.3},
    )
    for run, value in (("own", "off"), ("shared", "auto")):
        finished = command(
            "train",
            config,
            "--set",
            f"data.shared={value}",
            "--run",
            f"runs/{run}",
            cwd=work,
            environment=environment(tmp_path),
        )
        assert finished.code == 0, finished.err
    assert_same_training(work / "runs" / "shared", work / "runs" / "own")
    assert_ledger(work / "runs" / "shared", batch_size=31)
    used = summary(work / "runs" / "shared")["shared"]
    assert used["hits"] > 0, "rank 0's slices came from the service"
