"""An unlogged step never waits for the device, whatever is trained and in whatever precision; a logged one waits once.

Counted on a CPU (tests/hostreads.py); a new task or precision is in these tests as soon as the engine knows it.
"""

from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from flatout.config.loading import load_config
from flatout.config.schema import Config, TrainConfig
from flatout.engine.eager_optimizer import EagerOptimizer
from flatout.engine.learner import build_learner
from flatout.engine.loop import Job, Progress, _step, evaluate
from flatout.engine.optimizers import optimizer_for
from flatout.engine.precision import DTYPES, Precision
from flatout.tasks.protocol import Task
from flatout.timeline import Recorder
from flatout.training.setup import prepare_setup
from hostreads import HostReads, counted
from training import recipe

pytestmark = pytest.mark.usefixtures("_one_thread")
TASKS = get_args(Config.model_fields["task"].annotation)
PRECISIONS = tuple(DTYPES)
OPTIMIZERS = get_args(TrainConfig.model_fields["optimizer"].annotation)
DATA = {"classification": "shapes", "translation": "sentences"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"train__ema": 0.99, "train__clip_norm": 1.0, "train__accumulate": 2, "train__label_smoothing": 0.1},
    "recomputed": {"train__checkpointing": True, "train__accumulate": 3},
}


@dataclass
class Placing:
    """A task whose inputs are on the device once they were copied there."""

    task: Task
    reads: HostReads | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def to_device(self, batch: Any, device: torch.device) -> Any:
        inputs = self.task.to_device(batch, device)
        if self.reads is not None:
            self.reads.place([inputs])
        return inputs


def optimizer_as_on_cuda(model: nn.Module, train: TrainConfig) -> EagerOptimizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatout.engine.optimizers._can_fuse", lambda model: True)
        return optimizer_for(model, train)


def job_of(data: Path, precision: str, **changes: Any) -> Job:
    config = load_config(recipe(data, train__log_every=4, **changes)).config
    setup = prepare_setup(config)
    learner = build_learner(setup.task, config, setup.device)
    learner.optimizer = optimizer_as_on_cuda(learner.model, config.train)
    scaler = GradScaler("cpu", init_scale=2.0**8) if precision == "fp16" else None
    learner.precision = Precision(precision, "cpu", scaler)
    source = setup.opened.open_source(setup.plan, config.data, 0)
    val_source = setup.opened.open_source(setup.opened.val_plan, config.data, 0, False)
    return Job(
        config, Placing(setup.task), learner, source, val_source, Recorder(None), Progress(),
        save=lambda progress: None, stop_reason=lambda: None, total_steps=100,
    )  # fmt: skip


def reads_by_step(job: Job, steps: int) -> dict[int, list[str]]:
    found = {}
    with closing(job.source):
        for batch in islice(job.source.epoch(0), steps):
            model = job.learner.model
            with counted(model.parameters(), model.buffers()) as reads:
                job.task.reads = reads
                record = _step(job, batch, 0.0, 0.0)
            assert record is not None
            assert (record.loss is not None) == (record.step in (1, 4))
            found[record.step] = reads.reads
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("task", TASKS)
def test_only_a_logged_step_waits_and_once(
    task: str, precision: str, variant: str, request: pytest.FixtureRequest
) -> None:
    job = job_of(request.getfixturevalue(DATA[task]), precision, **VARIANTS[variant])
    before = [parameter.detach().clone() for parameter in job.learner.model.parameters()]
    reads = reads_by_step(job, 5)
    assert {step: len(each) for step, each in reads.items()} == {1: 1, 2: 0, 3: 0, 4: 1, 5: 0}, reads
    moved = [not torch.equal(a, b) for a, b in zip(before, job.learner.model.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2, "it trained"


def test_mixing_asks_nothing_of_the_device(shapes: Path) -> None:
    reads = reads_by_step(job_of(shapes, "fp32", views__small__mixup=0.2, views__small__cutmix=1.0), 3)
    assert [len(reads[step]) for step in (2, 3)] == [0, 0], reads


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(shapes: Path, optimizer: str, precision: str) -> None:
    reads = reads_by_step(job_of(shapes, precision, train__optimizer=optimizer, train__lr=0.01), 3)
    assert [len(reads[step]) for step in (2, 3)] == [0, 0], reads


@pytest.mark.parametrize("task", TASKS)
def test_validation_needs_no_doubles_on_the_device(task: str, request: pytest.FixtureRequest) -> None:
    """Apple's GPUs have none."""
    job = job_of(request.getfixturevalue(DATA[task]), "fp32")
    model = job.learner.model
    with counted(model.parameters(), model.buffers()) as reads:
        job.task.reads = reads
        assert evaluate(job)
    assert reads.doubles == []


def test_the_counter_counts() -> None:
    layer, mask, host = nn.Linear(2, 2), torch.tensor([True, False]), torch.tensor(3.0)
    with counted(layer.parameters()) as reads:
        value = layer(torch.ones(2, 2))
        assert host.item() == 3.0
        assert host.tolist() == 3.0
        value.mean().detach().clone().add_(1)
        assert reads.reads == []
        asks = [
            lambda: value.sum().item(), lambda: bool(value.isfinite().all()), lambda: float(value.detach()[0, 0]),
            lambda: value.tolist(), lambda: value.detach().numpy(), lambda: value.cpu(), lambda: value.to("cpu"),
            lambda: value[mask], lambda: torch.nonzero(value), lambda: torch.equal(value, value),
            lambda: value.masked_select(mask), lambda: value.unique(),
        ]  # fmt: skip
        for number, ask in enumerate(asks, 1):
            ask()
            assert len(reads.reads) == number, number
        assert not reads.on_device(value.cpu())
        assert torch.equal(value.cpu(), value)
        value.double()
    assert reads.doubles
