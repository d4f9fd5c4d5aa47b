"""Workers that fail, hang, are killed or left alone: the epoch is complete and the same, or the run has a cause."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import trouble
from epochs import BAD, expected, fingerprint, kept, loader_of, make_recipe
from small_datasets import split_of

from flatout.data.loading.pools import ThreadPool
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.process_pool import ProcessPool
from flatout.errors import NoSpace, StoreUnreachable, WorkerFailed


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> BatchPlan:
    return make_recipe(tmp_path_factory.mktemp("samples"))


class Left:
    """Worker processes and shared memory that came since this was made: other tests of the process have their own."""

    def __init__(self) -> None:
        self.had = {*self._workers(), *self._mappings()}

    @staticmethod
    def _workers() -> list[psutil.Process]:
        children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        return [child for child in children if "flatout.data.loading.process_pool" in " ".join(child.cmdline())]

    @staticmethod
    def _mappings() -> list[str]:
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]

    def workers(self) -> list[psutil.Process]:
        return [worker for worker in self._workers() if worker not in self.had]

    def mappings(self) -> list[str]:
        return [line for line in self._mappings() if line not in self.had]


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets worker processes import the reader that makes trouble; leaves no core files."""
    monkeypatch.setenv("PYTHONPATH", str(Path(trouble.__file__).parent))
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def with_trouble(recipe: BatchPlan, kind: str) -> BatchPlan:
    return replace(recipe, split=trouble.troubled(recipe.split, 11, kind))


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(("kind", "workers"), [("auto", 0), ("thread", 2), ("process", 1)])
def test_no_failure_of_a_worker_is_lost(recipe: BatchPlan, kind: str, workers: int) -> None:
    with (
        loader_of(with_trouble(recipe, "unreachable"), kind, workers) as loader,
        pytest.raises(StoreUnreachable, match="no answer from s3://bucket after 30 s"),
    ):
        list(loader.epoch(0))


@pytest.mark.usefixtures("importable")
def test_a_mistake_of_our_own_comes_with_its_trace(recipe: BatchPlan) -> None:
    with loader_of(with_trouble(recipe, "bug"), "thread", 1) as loader, pytest.raises(ZeroDivisionError):
        list(loader.epoch(0))
    with loader_of(with_trouble(recipe, "bug"), "process", 1) as loader:
        with pytest.raises(WorkerFailed, match="a loader worker failed; this is a bug") as caught:
            list(loader.epoch(0))
        assert "ZeroDivisionError: a mistake in our own code" in str(caught.value)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_wait_has_a_deadline(recipe: BatchPlan, kind: str) -> None:
    trouble.GATE.clear()
    with loader_of(with_trouble(recipe, "stuck"), kind, 1, batch_deadline_seconds=0.1) as loader:
        with pytest.raises(WorkerFailed, match=r"was not ready after 0\.1 s; .*raise data\.batch_deadline_seconds"):
            list(loader.epoch(0))
        trouble.GATE.set()  # lets the thread go, so that closing need not wait for it


def forgotten_do_not_come_back(pool: ThreadPool | ProcessPool, recipe: BatchPlan) -> None:
    every = [(0, index) for index in range(recipe.batches_per_epoch)]
    for key in every:
        pool.submit(key)
    if isinstance(pool, ThreadPool):
        assert trouble.ENTERED.wait(60)  # one of them is in work when they are forgotten
    pool.forget()
    trouble.GATE.set()
    pool.submit((1, 0))
    pool.wait((1, 0), 60)  # behind all the others
    for key in every:
        with pytest.raises(WorkerFailed):
            pool.wait(key, 0)


def test_what_was_forgotten_does_not_come_back(recipe: BatchPlan) -> None:
    trouble.GATE.clear()
    trouble.ENTERED.clear()
    with closing(ThreadPool(with_trouble(recipe, "stuck"), 1)) as threads:
        forgotten_do_not_come_back(threads, recipe)
    with closing(ProcessPool(recipe, 1)) as processes:
        forgotten_do_not_come_back(processes, recipe)


def test_workers_killed_in_the_middle_of_an_epoch_are_replaced(recipe: BatchPlan) -> None:
    new = Left()
    with loader_of(recipe, "process", 2, prefetch=4) as loader:
        batches = loader.epoch(0)
        found = [fingerprint(next(batches))]
        before = new.workers()
        assert len(before) == 2
        for worker in before:
            worker.send_signal(signal.SIGKILL)
        found += kept(batches)
        assert found == expected(recipe, 0)
        assert len(new.workers()) == 2
        assert not {worker.pid for worker in before} & {worker.pid for worker in new.workers()}
        assert kept(loader.epoch(1)) == expected(recipe, 1)


@pytest.mark.usefixtures("importable")
def test_a_sample_that_kills_three_workers_is_left_out_from_then_on(recipe: BatchPlan) -> None:
    new = Left()
    deadly, banned = with_trouble(recipe, "deadly"), replace(recipe, banned=(11,))
    with loader_of(deadly, "process", 1) as loader:
        assert kept(loader.epoch(0)) == expected(banned, 0)
        assert loader.quarantine[11].name == recipe.split.names[11]
        assert loader.quarantine[11].reason == "decoding it killed three workers"
        assert set(loader.quarantine) == {*BAD, 11}
        survivor = new.workers()
        assert kept(loader.epoch(1)) == expected(banned, 1)
        assert new.workers() == survivor  # and kills none any more


def test_workers_that_cannot_even_start_end_the_run(recipe: BatchPlan, capfd: pytest.CaptureFixture[str]) -> None:
    """They cannot import the reader they are sent; no sample is to blame."""
    with loader_of(with_trouble(recipe, "deadly"), "process", 1) as loader:
        with pytest.raises(WorkerFailed, match="3 loader workers in a row died"):
            list(loader.epoch(0))
        assert not loader.quarantine
    assert "ModuleNotFoundError: No module named 'trouble'" in capfd.readouterr().err


def test_closing_leaves_no_process_and_no_shared_memory(recipe: BatchPlan) -> None:
    new = Left()
    loader = loader_of(recipe, "process", 2)
    next(loader.epoch(0))
    assert len(new.workers()) == 2
    assert all(os.getsid(worker.pid) != os.getsid(0) for worker in new.workers())  # Ctrl-C is for the trainer alone
    assert len(new.mappings()) == 2
    assert all(line.endswith("(deleted)") for line in new.mappings())  # no name to leave behind
    loader.close()
    assert new.workers() == []
    assert new.mappings() == []


def test_workers_end_when_their_trainer_is_killed(tmp_path: Path) -> None:
    split_of(tmp_path, 8)
    script = (
        "import sys; from flatout.config.schema import DataConfig; from flatout.data.source.dataset import open_dataset\n"
        "from flatout.data.loading.prepare import BatchPlan; from flatout.data.loading.process_pool import ProcessPool\n"
        "from flatout.data.pixels.views import SHIPPED\n"
        "recipe = BatchPlan(open_dataset(DataConfig(path=sys.argv[1])).train, SHIPPED['train-64'], 0, 4)\n"
        "pool = ProcessPool(recipe, 1)\n"
        "pool.submit((0, 0)); pool.wait((0, 0), 60)\n"
        "print('ready', 'torch' in sys.modules, flush=True); sys.stdin.read()\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"ready False\n"  # workers and their like never load torch
        workers = psutil.Process(trainer.pid).children()
        assert len(workers) == 1
    finally:
        trainer.kill()
        trainer.communicate()
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert (len(gone), alive) == (1, [])


def test_no_room_for_a_buffer_is_said_before_anything_starts(recipe: BatchPlan) -> None:
    new = Left()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(NoSpace, match=r"no room for a loader buffer of .*; use fewer data\.workers") as caught:
            ProcessPool(replace(recipe, batch_size=4096), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "buffer of 3.54 MB" in str(caught.value)
    assert new.workers() == []
    assert new.mappings() == []
