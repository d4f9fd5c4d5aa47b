"""Whoever prepares the batches, an epoch is complete and always the same; buffers are used again, never too early."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from epochs import BAD, SAMPLES, expected, fingerprint, kept, loader_of, make_recipe

from flatout.data.loading.loader import Loader, choose_workers
from flatout.data.loading.pools import Buffers, InlinePool, Key, ThreadPool
from flatout.data.loading.prepare import BatchPlan
from flatout.data.source.dataset import Split
from flatout.errors import TooManyQuarantined


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> BatchPlan:
    return make_recipe(tmp_path_factory.mktemp("samples"))


POOLS = [("auto", 0), ("thread", 1), ("thread", 3), ("process", 1), ("process", 2)]


@pytest.fixture(scope="module", params=POOLS, ids=[f"{kind}-{workers}" for kind, workers in POOLS])
def loader(request: pytest.FixtureRequest, recipe: BatchPlan) -> Iterator[Loader]:
    """One for several tests: what one of them leaves unfinished must not show in the next."""
    with loader_of(recipe, *request.param, prefetch="auto" if request.param[1] == 0 else 3) as opened:
        yield opened


def test_batches_are_the_same_whoever_prepares_them(loader: Loader, recipe: BatchPlan) -> None:
    for epoch in (0, 1):
        assert kept(loader.epoch(epoch)) == expected(recipe, epoch)
    assert set(loader.quarantine) == set(BAD)
    assert all(loader.quarantine[number].name == recipe.split.names[number] for number in BAD)
    assert loader.stages.bytes_read > 0


def test_an_epoch_given_up_in_the_middle_does_not_leak_into_the_next(loader: Loader, recipe: BatchPlan) -> None:
    batches = loader.epoch(4)
    next(batches)
    next(batches)
    assert kept(loader.epoch(9)) == expected(recipe, 9)
    assert kept(loader.epoch(9)) == expected(recipe, 9)  # again, though epoch 10 was looked ahead to


def test_an_epoch_can_start_in_the_middle(loader: Loader, recipe: BatchPlan) -> None:
    assert kept(loader.epoch(2, start=3)) == expected(recipe, 2, start=3)
    assert kept(loader.epoch(3)) == expected(recipe, 3)
    assert kept(loader.epoch(5, start=recipe.batches_per_epoch)) == []


def test_an_epoch_given_up_can_go_on_where_it_stopped(loader: Loader, recipe: BatchPlan) -> None:
    batches = loader.epoch(6)
    first = [fingerprint(next(batches)), fingerprint(next(batches))]
    assert first + kept(loader.epoch(6, start=2)) == expected(recipe, 6)


def test_waiting_for_the_store_in_threads_of_their_own_changes_nothing(recipe: BatchPlan) -> None:
    with Loader(recipe, ThreadPool(recipe, 2, None, fetchers=3), 6, 60, 0.5) as loader:
        assert kept(loader.epoch(0)) == expected(recipe, 0)


# --- looking ahead ---------------------------------------------------------------------------------------------------


class NotingPool(InlinePool):
    """Prepares nothing ahead, but notes what it is asked for."""

    def __init__(self, recipe: BatchPlan) -> None:
        super().__init__(recipe)
        self.submitted: list[Key] = []
        self.waited: list[Key] = []
        self.forgotten = 0

    def submit(self, key: Key) -> None:
        self.submitted.append(key)

    def wait(self, key: Key, deadline_seconds: float):  # type: ignore[no-untyped-def]
        assert key in self.submitted
        self.waited.append(key)
        return super().wait(key, deadline_seconds)

    def forget(self) -> None:
        self.forgotten += 1


@pytest.mark.parametrize("prefetch", [1, 3, 20])
def test_the_end_of_an_epoch_prepares_the_start_of_the_next(recipe: BatchPlan, prefetch: int) -> None:
    pool = NotingPool(recipe)
    loader = Loader(recipe, pool, prefetch, 60, 0.5)
    keys = [(epoch, index) for epoch in range(5) for index in range(recipe.batches_per_epoch)]
    for number, _ in enumerate((batch for epoch in (0, 1) for batch in loader.epoch(epoch)), 1):
        assert pool.waited == keys[:number]
        assert pool.submitted == keys[: number + prefetch]  # each once, never more than so many ahead


def test_batches_of_an_epoch_given_up_are_forgotten(recipe: BatchPlan) -> None:
    pool = NotingPool(recipe)
    loader = Loader(recipe, pool, 3, 60, 0.5)
    next(loader.epoch(0))
    next(loader.epoch(0, start=1))  # goes on: nothing to forget
    assert pool.forgotten == 0
    next(loader.epoch(2))
    assert pool.forgotten == 1
    assert pool.submitted[5:] == [(2, 0), (2, 1), (2, 2), (2, 3)]


def test_without_looking_ahead_nothing_beyond_the_epoch_is_prepared(recipe: BatchPlan) -> None:
    pool = NotingPool(recipe)
    loader = Loader(recipe, pool, 3, 60, 0.5, look_ahead=False)
    for _ in range(2):
        pool.submitted.clear()
        list(loader.epoch(0))
        assert pool.submitted == [(0, index) for index in range(recipe.batches_per_epoch)]


# --- buffers ---------------------------------------------------------------------------------------------------------


def address(array: np.ndarray | torch.Tensor) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


def test_a_buffer_comes_back_when_nothing_uses_it_any_more() -> None:
    buffers = Buffers()
    first = address(buffers.take((4, 3, 8, 8)))
    assert address(buffers.take((4, 3, 8, 8))) == first
    assert address(buffers.take((2, 3, 8, 16))) == first  # as many bytes in another shape
    assert buffers.take((5, 3, 8, 8)).shape == (5, 3, 8, 8)


@pytest.mark.parametrize(
    "part",
    [
        lambda array: array, lambda array: array[:2], lambda array: array[1:].reshape(-1)[5:6],
        lambda array: torch.from_numpy(array[:2]), lambda array: torch.from_numpy(array)[1, 2].reshape(-1)[::2],
        lambda array: torch.from_numpy(array[:3]).numpy()[1],
    ],
    ids=["array", "slice", "slice of a slice", "tensor", "view of a tensor", "array of a tensor"],
)  # fmt: skip
def test_a_buffer_does_not_come_back_while_any_part_of_it_is_used(part) -> None:  # type: ignore[no-untyped-def]
    buffers = Buffers()
    held = part(buffers.take((4, 3, 8, 8)))
    held[...] = 7
    for _ in range(10):
        buffers.take((4, 3, 8, 8))[...] = 9
    assert (held == 7).all()


def test_buffers_are_used_again_from_batch_to_batch(recipe: BatchPlan) -> None:
    with loader_of(recipe, "thread", 1, prefetch=2) as loader:
        addresses = [address(batch.images) for epoch in range(6) for batch in loader.epoch(epoch)]
    assert len(set(addresses)) < len(addresses) / 2


def test_too_many_unusable_samples_end_the_run(recipe: BatchPlan) -> None:
    share = len(BAD) / SAMPLES
    with loader_of(recipe, "auto", 0, max_quarantine_share=share) as loader:
        list(loader.epoch(0))
        list(loader.epoch(1))  # the same two are not counted twice
    with loader_of(recipe, "auto", 0, max_quarantine_share=share * 0.99) as loader:
        with pytest.raises(TooManyQuarantined) as caught:
            list(loader.epoch(0))
        assert f"2 of {SAMPLES} samples cannot be used" in str(caught.value)
        assert any(repr(recipe.split.names[number]) in str(caught.value) for number in BAD)


def test_auto_measures_how_long_reading_takes(recipe: BatchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.data.loading.loader.usable_cores", lambda: 3)
    assert choose_workers(5, "cuda", recipe).value == 5
    locate, clock, slept = Split.locate, time.perf_counter, [0.0]

    def slow(*args: Any) -> Any:
        slept[0] += 1000.0
        return locate(*args)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + slept[0])
    monkeypatch.setattr(Split, "locate", slow)
    assert choose_workers("auto", "cuda", recipe).value == 16


def test_auto_does_not_take_what_is_done_once_for_waiting(recipe: BatchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.data.loading.loader.usable_cores", lambda: 3)
    locate, clock, calls = Split.locate, time.perf_counter, [0]

    def slow_at_first(*args: Any) -> Any:
        calls[0] += 1
        return locate(*args)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + (1000.0 if calls[0] else 0.0))
    monkeypatch.setattr(Split, "locate", slow_at_first)
    assert choose_workers("auto", "cuda", recipe).value == 3
    assert calls[0] > 1


def test_auto_does_not_take_a_busy_machine_for_slow_files(recipe: BatchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the three times, others had the core while a sample was read."""
    monkeypatch.setattr("flatout.data.loading.loader.usable_cores", lambda: 3)
    locate, clock, calls = Split.locate, time.perf_counter, [0]

    def preempted_twice(*args: Any) -> Any:
        calls[0] += 1
        return locate(*args)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 1000.0 * min(calls[0], 2))
    monkeypatch.setattr(Split, "locate", preempted_twice)
    assert choose_workers("auto", "cuda", recipe).value == 3
    assert calls[0] > 2


def test_auto_measures_samples_on_a_rank_of_many_too(recipe: BatchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.data.loading.loader.usable_cores", lambda: 3)
    assert choose_workers("auto", "cuda", replace(recipe, rank=60, world_size=64)).value == 3
