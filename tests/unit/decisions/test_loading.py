"""Who prepares batches and how many of them: recipe and machine in, choices with reasons out."""

import pytest

from flatout.config.schema import DataConfig
from flatout.decisions import Choice
from flatout.decisions.loading import (
    HERE,
    Window,
    adapt_workers,
    choose_fetchers,
    choose_pool,
    choose_shared_bytes,
    choose_sharing,
    choose_text_workers,
    choose_workers,
    decide_pool,
    decide_shared,
    decide_text,
    fit_memory,
    orders_in_flight,
)
from flatout.errors import ConfigError

STARVED = Window(waited_share=0.5, least_ready=0, busy_share=1.0, idle_cores=1.0)
PILED_UP = Window(waited_share=0.0, least_ready=6, busy_share=0.5, idle_cores=0.0)


@pytest.mark.parametrize(
    ("active", "seen", "most", "starved_with", "wanted"),
    [
        (1, STARVED, 4, 0, 2),
        (4, STARVED, 4, 0, 4),  # no more than allowed
        (1, Window(0.5, 0, 1.0, 0.0), 4, 0, 1),  # the consumer waits, but so does every core
        (1, Window(0.5, 0, 0.3, 1.0), 4, 0, 1),  # the workers wait themselves, for a store: more of them do not help
        (1, Window(0.02, 0, 1.0, 1.0), 4, 0, 1),
        (2, PILED_UP, 4, 0, 1),
        (1, PILED_UP, 4, 0, 1),  # never none
        (2, PILED_UP, 4, 1, 2),  # one was not enough before
        (3, PILED_UP, 4, 1, 2),
        (2, Window(0.0, 6, 0.5, 1.0), 4, 0, 2),  # nobody else needs the core
        (2, Window(0.0, 1, 0.5, 0.0), 4, 0, 2),  # not for long
    ],
)
def test_the_number_follows_the_queue_and_the_cores(
    active: int, seen: Window, most: int, starved_with: int, wanted: int
) -> None:
    assert adapt_workers(active, seen, most, starved_with) == wanted


@pytest.mark.parametrize(
    ("cores", "device", "waits", "workers"),
    [(8, "cuda", 0.2, 8), (8, "cpu", 0.2, 1), (1, "cuda", 0.0, 1), (3, "cuda", 3.0, 12), (2, "cpu", 3.0, 4), (64, "cuda", 9.0, 16)],
)  # fmt: skip
def test_auto_takes_more_workers_where_they_mostly_wait(cores: int, device: str, waits: float, workers: int) -> None:
    assert choose_workers("auto", cores, device, waits).value == workers


def test_a_number_of_the_recipe_is_taken_as_it_is() -> None:
    chosen = choose_workers(40, 2, "cpu")
    assert (chosen.value, chosen.reason, chosen.was_open) == (40, "data.workers says so", False)
    assert choose_workers("auto", 2, "cpu").was_open


@pytest.mark.parametrize(
    ("wanted", "workers", "compiled", "kind"),
    [
        ("auto", 0, True, "inline"),
        ("process", 0, True, "inline"),
        ("auto", 2, True, "thread"),
        ("auto", 2, False, "process"),
        ("thread", 2, False, "thread"),
        ("process", 2, True, "process"),
    ],
)
def test_the_pool_is_one_that_scales(wanted: str, workers: int, compiled: bool, kind: str) -> None:
    assert choose_pool(wanted, workers, compiled).value == kind


def test_only_threads_have_fetchers_and_only_for_remote_data() -> None:
    kinds = ("inline", "thread", "process")
    assert [choose_fetchers(kind, remote).value for remote in (True, False) for kind in kinds] == [0, 4, 0, 0, 0, 0]
    assert all(choose_fetchers(kind, remote).reason for remote in (True, False) for kind in kinds)
    assert (orders_in_flight(True), orders_in_flight(False)) == (4, 1)


def test_batches_ahead_follow_the_workers_that_may_come() -> None:
    pool = decide_pool(DataConfig(path="x"), choose_workers("auto", 8, "cpu"), True, False, 8)
    assert (pool.workers.value, pool.most_workers.value, pool.prefetch.value, pool.adapts) == (1, 8, 16, True)
    assert [pool.prefetch_with(active, 16) for active in (1, 4, 9)] == [2, 8, 16]
    remote = decide_pool(DataConfig(path="x"), 2, True, True, 2)
    assert (remote.fetchers.value, remote.prefetch_with(2, 100)) == (4, 8)
    fixed = decide_pool(DataConfig(path="x", prefetch=3), 2, True, True, 8)
    assert (fixed.prefetch.value, fixed.prefetch_with(1, 3)) == (3, 3)
    tight = decide_pool(DataConfig(path="x", memory=10**6), 1, True, False, 8)
    assert (tight.most_workers.value, tight.prefetch.value) == (8, 2)  # of a budget, no more than one worker needs
    alone = decide_pool(DataConfig(path="x", workers=0), 0, True, True, 8)
    assert (alone.kind.value, alone.prefetch.value, alone.adapts, alone.prefetch_with(0, 1)) == ("inline", 1, False, 1)
    by_hand = decide_pool(DataConfig(path="x", workers=3), 3, True, False, 8)
    assert (by_hand.most_workers.value, by_hand.adapts) == (3, False)


def test_memory_is_for_batches_first() -> None:
    ahead: Choice[int] = Choice(8, "so many", "auto")
    plan = fit_memory(1000, ahead, 100, 100, 10**9, False)
    assert (plan.memory.value, plan.prefetch.value, plan.cache_bytes) == (1000, 7, 0)
    assert "data.memory" in plan.prefetch.reason
    assert fit_memory(2000, ahead, 100, 0, 0, False).cache_bytes == 1000
    with pytest.raises(ConfigError, match="3 must fit"):
        fit_memory(200, ahead, 100, 0, 10**9, False)
    free = fit_memory("auto", ahead, 100, 300, 5000, False)
    assert (free.memory.value, free.prefetch, free.cache_bytes) == (5000, ahead, 4700)
    assert fit_memory("auto", ahead, 100, 300, 5000, True).cache_bytes == 3700  # nobody can swap pinned batches out
    assert fit_memory("auto", ahead, 100, 300, 200, True).cache_bytes == 0


def test_shared_batches_are_decided_where_they_are_made() -> None:
    assert [choose_sharing(each).value for each in ("off", "auto", "grpc://a:1")] == ["off", HERE, "grpc://a:1"]
    data = DataConfig(path="s3://b/x", shared="auto")
    assert choose_shared_bytes(data).value is None
    assert choose_shared_bytes(DataConfig(path="x", shared="auto", shared_bytes=5)).value == 5
    decided = decide_shared(data, 3, True)
    assert (decided.worker_kind.value, decided.prefetch.value, decided.stage.value) == ("shared", 6, "service")
    assert decided.stage.note == f"stage: {decided.stage.reason}"
    assert decide_shared(data, 0, False).prefetch.value == 2
    assert decide_shared(data, 0, False).stage.value == "off"


def test_text_needs_one_thread_at_most() -> None:
    data = DataConfig(path="x")
    assert [choose_text_workers(each).value for each in ("auto", 0, 5)] == [1, 0, 5]
    assert [decide_text(data, each).prefetch.value for each in (0, 1)] == [0, 2]
    assert decide_text(DataConfig(path="x", prefetch=7), 1).prefetch.value == 7
    decided = decide_text(data, choose_text_workers("auto"))
    assert (decided.worker_kind.value, decided.fetchers.value, decided.stage.value) == ("thread", 0, "off")
