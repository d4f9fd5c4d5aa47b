"""One forward and backward without any exchange: when each gradient is ready, before the first real step."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flatout.engine.learner import Learner
from flatout.tasks.protocol import Task


@dataclass(frozen=True)
class StepProfile:
    """Seconds are counted from the start of the forward pass."""

    compute_seconds: float
    gradients: tuple[tuple[int, float], ...]  # bytes and when they are ready, in that order

    def buckets(self, bucket_bytes: int) -> list[tuple[int, float]]:
        """As DDP fills them: a bucket is sent when it has reached its size, or holds the last gradient."""
        full: list[tuple[int, float]] = []
        size = 0
        for number, (gradient_bytes, ready) in enumerate(self.gradients, 1):
            size += gradient_bytes
            if size >= bucket_bytes or number == len(self.gradients):
                full.append((size, ready))
                size = 0
        return full


def profile_step(task: Task, learner: Learner, inputs: object, accumulate: int) -> StepProfile:
    """Leaves weights, buffers, gradients and random numbers as they were. The second of two passes counts.

    Of the wrapped model, told to exchange nothing: torch.compile would keep the graph of the bare one for training too,
    and that is in one piece, whose gradients all come at its end.
    """
    parts = task.parts(inputs, accumulate)
    with _untouched(learner.model):
        _passes(task, learner, parts)
        learner.model.zero_grad(set_to_none=True)
        profile = _passes(task, learner, parts)
        learner.model.zero_grad(set_to_none=True)
    return profile


def _passes(task: Task, learner: Learner, parts: Sequence[tuple[object, float]]) -> StepProfile:
    ready: dict[int, float] = {}
    parameters = [p for p in learner.model.parameters() if p.requires_grad]

    def note(parameter: Tensor) -> None:
        ready[id(parameter)] = time.perf_counter()

    handles = [p.register_post_accumulate_grad_hook(note) for p in parameters]  # type: ignore[no-untyped-call]
    started = time.perf_counter()
    for part, share in parts:
        with learner.precision.autocast():
            loss = task.loss(learner.wrapped, part) * share
        learner.precision.backward(loss)
    if learner.device.kind == "cuda":
        torch.cuda.synchronize(learner.device.torch)
    seconds = time.perf_counter() - started
    for handle in handles:
        handle.remove()
    # on a GPU the host is done long before: what it saw is stretched to the time the device took
    last = max(ready.values(), default=started) - started
    stretch = seconds / last if last and learner.device.waits else 1.0
    rows = [(parameter.nbytes, (ready.get(id(parameter), started) - started) * stretch) for parameter in parameters]
    return StepProfile(seconds, tuple(sorted(rows, key=lambda row: row[1])))


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    buffers = [buffer.clone() for buffer in model.buffers()]
    random_state = torch.get_rng_state()
    model.train()
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, kept in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(kept)
        torch.set_rng_state(random_state)
