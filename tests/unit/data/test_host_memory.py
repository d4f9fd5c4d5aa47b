"""What pinned memory takes, and what the threads that fill it leave to the one that trains."""

import gc
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flatout.config.schema import DataConfig
from flatout.data.loading.loader import open_loader
from flatout.data.loading.pinned_memory import HostMemory, power_of_two
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.loading.process_pool import ProcessPool
from flatout.data.pixels.decode import native
from flatout.data.pixels.views import SHIPPED
from flatout.data.source.dataset import open_dataset
from late_copies import FakePinned

VIEW = replace(SHIPPED["train-224"], size=16, mixup=0.2, cutmix=1.0)


def recipe_of(data: Path, batch_size: int = 9) -> BatchPlan:
    return BatchPlan(open_dataset(DataConfig(path=str(data))).train, VIEW, 0, batch_size)


def test_what_the_allocator_of_pinned_memory_takes() -> None:
    assert [power_of_two(count) for count in (0, 1, 2, 3, 4096, 4097, 38_535_168)] == [1, 1, 2, 4, 4096, 8192, 1 << 26]


@pytest.mark.parametrize(("kind", "workers"), [("inline", 0), ("thread", 1), ("process", 1)])
def test_pinned_memory_and_its_rounding_are_in_the_budget(shapes: Path, kind: str, workers: int) -> None:
    recipe = recipe_of(shapes)
    largest, rounded = recipe.largest_bytes(), power_of_two(recipe.largest_bytes())
    assert largest < rounded
    options = {"worker_kind": kind} if workers else {}

    def memory_of(device_kind: str) -> int:
        config = DataConfig(cache="off", stage="off", prefetch=3, **options)
        with open_loader(recipe, config, workers, device_kind=device_kind) as loader:
            return loader.memory_bytes

    alive = 2 + (3 if workers else 1)
    assert memory_of("cuda") - memory_of("cpu") == alive * (rounded - largest)


def test_a_small_budget_counts_what_the_allocator_takes(shapes: Path) -> None:
    recipe = recipe_of(shapes)
    largest, rounded = recipe.largest_bytes(), power_of_two(recipe.largest_bytes())
    budget = 8 * largest
    config = DataConfig(cache="off", stage="off", worker_kind="thread", prefetch=6, memory=budget)
    with open_loader(recipe, config, 1, device_kind="cpu") as loader:
        assert loader.memory_bytes == budget
    with open_loader(recipe, config, 1, device_kind="cuda") as loader:
        assert loader.memory_bytes == budget // rounded * rounded <= budget


def test_a_rank_takes_memory_for_its_slice(shapes: Path) -> None:
    """What worker processes prepare is copied to memory of the trainer: of one rank's part, not of the global batch."""
    recipe, pinned = replace(recipe_of(shapes, 32), rank=1, world_size=4), FakePinned()
    memory = HostMemory(pinned, power_of_two, is_pinned=True)
    with closing(ProcessPool(recipe, 1, memory)) as pool:
        pool.submit((0, 0))
        pool.wait((0, 0), 600)
    assert [each.nbytes for each in pinned.allocated] == [power_of_two(recipe.largest_bytes())]


def python_calls(recipe: BatchPlan) -> int:
    """At least: a thread that waited for a core notes that too, and a collection calls what others left behind."""
    space = np.empty(recipe.shape(0), np.uint8)
    prepare(recipe, 0, 0, space)  # what is done once
    return min(calls_of_one_batch(recipe, space) for _ in range(5))


def calls_of_one_batch(recipe: BatchPlan, space: NDArray[np.uint8]) -> int:
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        prepare(recipe, 0, 1, space)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls[0]


@pytest.mark.skipif(native is None, reason="needs the compiled decoder")
def test_a_worker_holds_the_gil_no_longer_for_a_larger_batch(shapes: Path) -> None:
    """Kernels are launched by a thread that needs it too: nothing in Python is done sample by sample."""
    assert python_calls(recipe_of(shapes, 8)) == python_calls(recipe_of(shapes, 64))
