"""An emulated step costs the CPU nothing that grows with the model, and its state has the real sizes all the same."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.config.loading import load_config
from flatout.data.batch import Batch
from flatout.engine.learner import Learner, build_learner, state_digest
from flatout.engine.loop import Job, Progress, StepRecord, train
from flatout.engine.parallel.gradients import GradientExchange
from flatout.engine.parallel.profile import profile_step
from flatout.timeline import Recorder
from flatout.training.measuring import OneBatch
from flatout.training.setup import Setup, prepare_setup
from training import recipe

BATCH = 8


class Work(TorchDispatchMode):
    """Counts operations, and notes the largest tensor that any of them read or wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations[str(func)] += 1
        self.largest = max([self.largest, *(each.numel() for each in _tensors((*args, result)))])
        return result


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def prepared(data: Path, **changes: Any) -> tuple[Setup, Learner]:
    changes = {"emulated": {"base_seconds": 0.0, "seconds_per_sample": 0.0}, **changes}
    setup = prepare_setup(load_config(recipe(data, device="emulated", **changes)).config)
    return setup, build_learner(setup.task, setup.config, setup.device)


def batch() -> Batch:
    images = torch.zeros(BATCH, 3, 16, 16, dtype=torch.uint8)
    return Batch(0, 0, images, torch.zeros(BATCH, dtype=torch.int64), torch.arange(BATCH))


def steps(setup: Setup, learner: Learner) -> Iterator[StepRecord]:
    source = OneBatch(batch(), 100)
    job = Job(
        setup.config, setup.task, learner, source, source, Recorder(None), Progress(),
        save=lambda progress: None, stop_reason=lambda: None, total_steps=100,
    )  # fmt: skip
    return (record for record in train(job) if isinstance(record, StepRecord))


def work_of_a_step(data: Path, **changes: Any) -> Work:
    running = steps(*prepared(data, **changes))
    next(running)  # makes the gradients, and looks whether there is one for every parameter
    with Work() as work:
        next(running)
    return work


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "muon"])
def test_a_step_works_on_nothing_larger_than_its_batch(shapes: Path, optimizer: str) -> None:
    work = work_of_a_step(
        shapes, train__optimizer=optimizer, train__ema=0.9, train__clip_norm=1.0, train__label_smoothing=0.1
    )
    assert work.largest <= 3 * 16 * 16 * BATCH


def test_the_work_of_a_step_does_not_depend_on_the_model(shapes: Path) -> None:
    small, large = (
        work_of_a_step(shapes, model={"name": name, "width": 0.125}).operations for name in ("resnet18", "resnet50")
    )
    assert small == large


def test_validation_works_on_nothing_larger_than_its_batch(shapes: Path) -> None:
    setup, learner = prepared(shapes, train__ema=0.9)
    with Work() as work, learner.evaluating():
        sums = setup.task.evaluate(learner.compute, setup.task.to_device(batch(), torch.device("cpu")))
    assert work.largest <= 3 * 16 * 16 * BATCH
    assert setup.task.metrics(sums)["top1"] == 1 / len(setup.dataset.classes)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "muon"])
def test_state_has_the_names_and_sizes_of_the_real_one(shapes: Path, optimizer: str) -> None:
    shapes_of: list[Mapping[str, Any]] = []
    for device in ("emulated", "cpu"):
        setup = prepare_setup(
            load_config(recipe(shapes, device=device, train__optimizer=optimizer, train__ema=0.9)).config
        )
        learner = build_learner(setup.task, setup.config, setup.device)
        next(steps(setup, learner))
        found = learner.tensors().items()
        shapes_of.append({name.replace("model.", ""): (value.shape, value.dtype) for name, value in found})
    assert shapes_of[0] == shapes_of[1]


def test_a_learner_that_goes_on_is_the_same_to_the_bit(shapes: Path) -> None:
    setup, learner = prepared(shapes, train__ema=0.9, train__optimizer="adamw")
    running = steps(setup, learner)
    next(running), next(running)
    saved = {name: value.clone() for name, value in learner.tensors().items()}
    _, resumed = prepared(shapes, train__ema=0.9, train__optimizer="adamw", train__seed=1)
    resumed.load(saved)
    assert state_digest(resumed.tensors()) == state_digest(saved)
    next(running)
    next(steps(setup, resumed))
    assert state_digest(resumed.tensors()) == state_digest(learner.tensors())


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("compress", ["none", "fp16", "powersgd"])
def test_every_step_exchanges_gradients_of_the_real_size(shapes: Path, one_rank: None, compress: str) -> None:
    setup, learner = prepared(shapes, parallel={"mode": "ddp", "compress": compress})
    parallel = setup.config.parallel.model_copy(update={"powersgd_start_step": 2})
    exchange = GradientExchange(learner.model, parallel, Recorder(None))
    learner.wrapped = exchange.wrapped
    weights = sum(p.nbytes for p in learner.model.parameters())
    for step in range(1, 5):
        if exchange.powersgd is not None:
            exchange.powersgd.begin_step(step)
        with exchange.exchange():
            learner.precision.backward(
                setup.task.loss(learner.wrapped, setup.task.to_device(batch(), torch.device("cpu")))
            )
        learner.optimizer.zero_grad()
        assert sum(each.bytes for each in exchange.sent) == weights, step
    assert all(p.grad is not None and not p.grad.any() for p in learner.model.parameters())


def test_a_profile_sees_when_each_gradient_is_ready_although_they_are_kept(shapes: Path) -> None:
    pace = {"base_seconds": 0.01, "seconds_per_sample": 0.0}
    setup, learner = prepared(shapes, emulated=pace, parallel={"mode": "ddp"})
    profile = profile_step(setup.task, learner, setup.task.to_device(batch(), torch.device("cpu")), 1)
    assert profile.gradients[0][1] > 0
    assert len({ready for _, ready in profile.gradients}) > 10  # layer by layer, not all at once
