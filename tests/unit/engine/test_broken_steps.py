"""What a logged step finds before the weights are touched, and which batches it can name."""

from pathlib import Path

import pytest
import torch
from test_host_reads import job_of
from torch import Tensor

from flatout.engine.loop import Job, finite_tensors, train
from flatout.engine.precision import LEAST_SCALE
from flatout.errors import NotFinite

pytestmark = pytest.mark.usefixtures("_one_thread")


def poison(job: Job, at_step: int, value: float) -> None:
    """The gradient of one parameter at one step."""

    def broken(gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, value) if job.progress.step + 1 == at_step else gradient

    dict(job.learner.model.named_parameters())["layer2.0.conv1.weight"].register_hook(broken)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_gradient_is_named_before_the_weights_change(
    shapes: Path, value: float, clip_norm: float | None
) -> None:
    job = job_of(shapes, "fp32", train__clip_norm=clip_norm)
    poison(job, 4, value)
    steps = train(job)
    for _ in range(3):
        next(steps)
    with pytest.raises(NotFinite, match=r"first in layer2\.0\.conv1\.weight.*train\.lr"):
        next(steps)
    assert all(p.isfinite().all() for p in job.learner.model.parameters())


def test_every_batch_since_the_last_good_loss_is_named(shapes: Path) -> None:
    """Read at steps 1 and 4: what step 2 made of the weights is found at step 4."""
    job = job_of(shapes, "fp32")
    poison(job, 2, float("inf"))
    with pytest.raises(NotFinite, match="the loss is nan at step 4"):
        list(train(job))
    assert [each.step for each in job.unread] == [1, 2, 3, 4]
    assert [each.batch_index for each in job.unread] == [0, 1, 2, 3]
    assert all(len(each.sample_ids) == 8 for each in job.unread)
    with pytest.raises(NotFinite, match="not finite after step 3"):
        finite_tensors(job.learner, 3, keep=True)


def test_an_overflow_of_fp16_is_left_out_and_training_goes_on(shapes: Path) -> None:
    """At a logged step too, and with clipping, whose norm is then infinite."""
    job = job_of(shapes, "fp16", train__clip_norm=1.0)
    poison(job, 4, float("inf"))
    steps = train(job)
    for _ in range(3):
        next(steps)
    before = [parameter.detach().clone() for parameter in job.learner.model.parameters()]
    assert next(steps).loss is not None
    assert all(torch.equal(a, b) for a, b in zip(before, job.learner.model.parameters(), strict=True))
    assert job.learner.precision.scalars()["scale"] == 2.0**7
    assert next(steps).step == 5


def test_endless_overflow_ends_the_run(shapes: Path) -> None:
    job = job_of(shapes, "fp16")
    steps = train(job)
    next(steps)
    job.learner.precision.load_scalars({**job.learner.precision.scalars(), "scale": LEAST_SCALE / 2})
    with pytest.raises(NotFinite, match="use bf16"):
        list(steps)


def test_an_epoch_counts_all_its_samples(shapes: Path) -> None:
    """Though only the loss of every fourth step was read."""
    job = job_of(shapes, "fp32", train__epochs=1)
    *steps, epoch = train(job)
    assert epoch.samples == sum(step.samples for step in steps) == len(range(4 * 39))
    read = [step for step in steps if step.loss is not None]
    mean = sum(step.loss * step.samples for step in read) / sum(step.samples for step in read)
    assert 1 < len(read) < len(steps)
    assert epoch.train_loss == pytest.approx(mean)
