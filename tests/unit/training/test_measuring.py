"""What probe and tune measure on a device with a queue of its own; a fake one stands in for CUDA."""

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from flatout.config.loading import load_config
from flatout.data.batch import LoadStats
from flatout.engine.devices import Device
from flatout.engine.learner import build_learner
from flatout.training.measuring import OneBatch, _steps
from flatout.training.setup import prepare_setup
from training import BATCH_SIZE, recipe

LAUNCH, QUEUED = 0.001, 1.0  # seconds: the host's clock ticks a little at every look, a step keeps the device busy


@dataclass(frozen=True)
class Queue:
    """A host clock that anyone's look advances, and work that is only done when it is waited for."""

    seconds: dict[str, float]

    def now(self) -> float:
        self.seconds["host"] += LAUNCH
        return self.seconds["host"]


@dataclass(frozen=True)
class QueuedDevice(Device):
    queue: Queue = Queue({})

    def wait(self) -> None:
        self.queue.seconds["waits"] += 1
        self.queue.seconds["host"] += self.queue.seconds.pop("queued", 0.0)

    def memory_peak_bytes(self) -> int | None:
        return None


def test_the_window_begins_and_ends_with_an_idle_device_and_its_time_goes_to_who_used_it(
    shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue({"host": 0.0, "waits": 0})

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = queue.seconds.get("done", 0.0)

        def elapsed_time(self, end: "Event") -> float:
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(time, "perf_counter", queue.now)
    config = load_config(recipe(shapes, train__epochs=10**6, train__log_every=10**6, train__max_steps=None)).config
    setup = prepare_setup(config)
    learner = build_learner(setup.task, setup.config, setup.device)
    learner.model.register_forward_hook(lambda *_: _work(queue))
    setup = replace(setup, device=QueuedDevice("cuda", torch.device("cpu"), "fake", queue))
    with closing(setup.opened.open_source(setup.plan, config.data, 0)) as loader:
        batch = next(iter(loader.epoch(0)))
        measured = _steps(setup, learner, OneBatch(batch, 10**6), LoadStats(), 0.1)
    assert queue.seconds["waits"] == 2  # the ends of the window
    assert measured.step == pytest.approx(QUEUED, rel=0.2)  # what was queued before it is not counted, what is in it is
    assert measured.samples_per_second == pytest.approx(BATCH_SIZE / QUEUED, rel=0.2)
    assert measured.parts["forward"] > 0.8 * sum(measured.step_seconds)
    assert measured.parts["optimizer"] < 0.1 * sum(measured.step_seconds)


def _work(queue: Queue) -> None:
    for name in ("queued", "done"):
        queue.seconds[name] = queue.seconds.get(name, 0.0) + QUEUED
