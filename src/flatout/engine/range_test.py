"""Learning-rate range test: raise the rate step by step and watch the loss. The suggestions are pure functions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from flatout.config.schema import Config
from flatout.data.batch import BatchSource
from flatout.engine.copying import Feed, copies_for
from flatout.engine.learner import Learner
from flatout.engine.parameters import set_rates
from flatout.tasks.protocol import Task

_SMOOTHING = 0.9
_DIVERGED = 4.0  # times the best smoothed loss


@dataclass(frozen=True)
class RatePoint:
    """One step of the range test; `smoothed` is the running mean of the loss."""

    learning_rate: float
    loss: float
    smoothed: float


def rate_at(step: int, steps: int, low: float, high: float) -> float:
    """Exponential from low to high."""
    return low * math.exp(math.log(high / low) * step / max(1, steps - 1))


def range_test(
    task: Task, learner: Learner, source: BatchSource, config: Config, low: float, high: float, steps: int
) -> Iterator[RatePoint]:
    """Train on scratch weights with a rising rate until the loss explodes. Stops early; yields a point per step."""
    learner.model.train()
    average = best = math.inf
    total, weight, step, epoch = 0.0, 0.0, 0, 0
    copies = copies_for(task, learner.device)
    while step < steps:
        feed = Feed(source.epoch(epoch), copies)
        for batch in feed:
            if step >= steps:
                return
            if len(batch.sample_ids) == 0:
                continue
            rate = rate_at(step, steps, low, high)
            inputs = copies.inputs(batch)
            feed.look_ahead()  # each step ends with a wait for the device
            loss = _step(task, learner, inputs, rate, config.train.accumulate)
            total, weight = _SMOOTHING * total + (1 - _SMOOTHING) * loss, _SMOOTHING * weight + 1 - _SMOOTHING
            average = total / weight
            if not math.isfinite(loss) or (step > 5 and average > _DIVERGED * best):
                return
            best = min(best, average)
            yield RatePoint(rate, loss, average)
            step += 1
        epoch += 1


def _step(task: Task, learner: Learner, inputs: object, rate: float, accumulate: int) -> float:
    set_rates(learner.optimizer.param_groups, rate)
    total = 0.0
    for part, share in task.parts(inputs, accumulate):
        with learner.precision.autocast():
            loss = task.loss(learner.compute, part) * share
        learner.precision.backward(loss)
        total += float(loss.item())
    if math.isfinite(total):
        with torch.no_grad():
            learner.precision.step(learner.optimizer)
    learner.optimizer.zero_grad(set_to_none=True)
    return total


def suggest(points: Sequence[RatePoint]) -> dict[str, float | None]:
    """`steepest`: where the smoothed loss falls fastest per decade; `minimum_tenth`: a tenth of where it is lowest."""
    if len(points) < 10:
        return {"steepest": None, "minimum_tenth": None}
    usable = points[len(points) // 20 :]  # the first points carry the noise of an average that just began
    lowest = min(range(len(usable)), key=lambda i: usable[i].smoothed)
    falling = usable[: lowest + 1]
    if len(falling) < 3:
        return {"steepest": None, "minimum_tenth": usable[lowest].learning_rate / 10}
    slopes = [
        (after.smoothed - before.smoothed) / math.log(after.learning_rate / before.learning_rate)
        for before, after in zip(falling, falling[2:], strict=False)
    ]
    steepest = min(range(len(slopes)), key=slopes.__getitem__)
    return {"steepest": falling[steepest + 1].learning_rate, "minimum_tenth": usable[lowest].learning_rate / 10}
