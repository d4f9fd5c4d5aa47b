"""How many workers: a pool that is resized, and that no batch notices."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from epochs import VIEW, expected, kept
from small_datasets import split_of

from flatout.config.schema import DataConfig
from flatout.data.loading import worker_count
from flatout.data.loading.loader import open_loader
from flatout.data.loading.pools import ThreadPool
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.worker_count import WorkerControl


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> BatchPlan:
    return BatchPlan(split_of(tmp_path_factory.mktemp("data"), 40, {}), VIEW, seed=3, batch_size=4)


class FakePool:
    active_workers = 1
    busy_seconds = 0.0

    def resize(self, workers: int) -> None:
        self.active_workers = workers


class Clock:
    """Of a machine with two cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.cpu = self.idle = 0.0
        monkeypatch.setattr(worker_count.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(worker_count.time, "process_time", lambda: self.cpu)
        monkeypatch.setattr(worker_count, "_idle_seconds", lambda: self.idle)


def test_it_grows_while_cores_are_idle_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pool = Clock(monkeypatch), FakePool()
    control = WorkerControl(pool, 2, 2, lambda workers: 2 * workers)
    notes = []
    for _ in range(40):
        busy = pool.active_workers
        clock.wall += 0.1
        clock.cpu += 0.1 * busy
        clock.idle += 0.1 * (2 - busy)
        pool.busy_seconds += 0.1 * busy
        notes.append(control.after_batch(0, 0.09))
    assert [note for note in notes if note] == [
        "workers: 1 -> 2; batches were waited for 90 % of the time, 1.0 of 2 cores were idle"
    ]
    assert (pool.active_workers, control.prefetch) == (2, 4)


def test_it_gives_a_core_back_to_training_but_not_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pool = Clock(monkeypatch), FakePool()
    pool.active_workers = 2
    control, counts = WorkerControl(pool, 2, 2, lambda workers: 2 * workers), []
    for _ in range(200):
        starved = pool.active_workers == 1
        clock.wall += 0.1
        clock.idle += 0.08 if starved else 0.0
        clock.cpu += 0.12 if starved else 0.2
        pool.busy_seconds += 0.1
        control.after_batch(0 if starved else 4, 0.05 if starved else 0.0)
        counts.append(pool.active_workers)
    changes = [after for before, after in zip([2, *counts], counts, strict=False) if before != after]
    assert changes == [1, 2], "tried with one, went back, and stayed"


@pytest.fixture
def pool(recipe: BatchPlan) -> Iterator[ThreadPool]:
    with closing(ThreadPool(recipe, 3)) as opened:
        yield opened


def test_a_pool_prepares_the_same_with_any_number_of_workers(pool: ThreadPool, recipe: BatchPlan) -> None:
    batches = []
    for index, workers in zip(range(recipe.batches_per_epoch), [3, 1, 5, 2, 1, 4, 1, 1, 3, 2], strict=True):
        pool.resize(workers)
        assert pool.active_workers == workers
        pool.submit((0, index))
        batches.append(pool.wait((0, index), 60).images.tobytes())
    assert pool.busy_seconds > 0
    with closing(ThreadPool(recipe, 1)) as single:
        for index in range(recipe.batches_per_epoch):
            single.submit((0, index))
        assert batches == [single.wait((0, index), 60).images.tobytes() for index in range(recipe.batches_per_epoch)]


def test_a_pool_that_was_made_smaller_can_be_closed(recipe: BatchPlan) -> None:
    pool = ThreadPool(recipe, 4)
    pool.resize(1)
    pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)
    assert not [each for each in threading.enumerate() if each in pool._threads]


def test_a_loader_that_adapts_gives_the_same_batches(
    recipe: BatchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch another number of workers."""
    numbers = iter([2, 4, 1, 3] * 100)
    monkeypatch.setattr(worker_count, "_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(worker_count, "_WINDOW_BATCHES", 1)
    monkeypatch.setattr(worker_count, "adapt_workers", lambda *_: next(numbers))
    with open_loader(recipe, DataConfig(workers="auto", worker_kind="thread", cache="memory"), 1) as loader:
        assert loader.notes[0].startswith("workers: 1 to begin with, up to ")
        for epoch in range(3):
            assert kept(loader.epoch(epoch)) == expected(recipe, epoch)
        assert any("at batch 1 of epoch 0" in note for note in loader.notes)
        assert [each.value for each in loader.changes if each.key == "data.workers"][:5] == [2, 4, 1, 3, 2]
        assert all(each.reason for each in loader.changes)
    with open_loader(recipe, DataConfig(workers=2, worker_kind="thread"), 2) as fixed:
        assert not any("workers" in note for note in fixed.notes)
        assert fixed.changes == []
