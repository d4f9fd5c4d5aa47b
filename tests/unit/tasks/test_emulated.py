"""The emulated model: waits as long as asked, by a clock of our own, and touches every parameter."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flatout.errors import ConfigError
from flatout.tasks.classification.emulated_model import EmulatedModel, Wait
from flatout.tasks.classification.resnet import resnet


class FakeTime:
    """A clock that moves a microsecond per look, and a sleep that wakes `late` seconds after it should."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = 100.0
        self.late = late
        self.slept: list[float] = []

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late

    def wait(self) -> Wait:
        return Wait(self.clock, self.sleep)


def emulated(time: FakeTime) -> EmulatedModel:
    return EmulatedModel(
        resnet("resnet18", 7, stem="small", width=0.125), 7, base_seconds=0.3, seconds_per_sample=0.15, wait=time.wait()
    )


def test_a_step_takes_a_third_forward_and_the_rest_backward() -> None:
    time = FakeTime()
    model = emulated(time)
    start = time.now
    logits = model(torch.randn(4, 3, 32, 32))
    assert time.now - start == pytest.approx(0.3, abs=1e-4)  # a third of 0.3 + 4 * 0.15
    cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    assert time.now - start == pytest.approx(0.9, abs=1e-4)
    assert logits.shape == (4, 7)
    assert not logits.any()


def test_every_parameter_gets_a_zero_gradient_and_frozen_ones_none() -> None:
    model = emulated(FakeTime())
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1])).backward()
    assert frozen.grad is None
    for name, parameter in list(model.named_parameters())[1:]:
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape
        assert not parameter.grad.any()


def test_gradients_accumulate_over_several_batches() -> None:
    time = FakeTime()
    model = emulated(time)
    start = time.now
    for _ in range(2):
        model(torch.randn(4, 3, 8, 8)).sum().backward()
    assert time.now - start == pytest.approx(1.8, abs=1e-4)


def test_validation_spends_the_forward_share_only() -> None:
    time = FakeTime()
    model = emulated(time).eval()
    start = time.now
    with torch.no_grad():
        logits = model(torch.randn(4, 3, 8, 8))
    assert time.now - start == pytest.approx(0.3, abs=1e-4)
    assert not logits.requires_grad


def test_a_wait_sleeps_short_and_spins_to_its_deadline() -> None:
    time = FakeTime()
    wait = time.wait()
    start = time.now
    wait.until(start, 0.010)
    assert time.slept == pytest.approx([0.010 - wait.spin_seconds], abs=1e-5)
    assert 0.010 <= time.now - start < 0.0101


def test_time_already_spent_counts() -> None:
    time = FakeTime()
    start = time.now
    time.now += 0.004
    time.wait().until(start, 0.010)
    assert sum(time.slept) < 0.0061
    assert time.now - start >= 0.010


def test_sleeps_that_wake_early_go_on() -> None:
    time = FakeTime()
    wait = Wait(time.clock, lambda seconds: time.sleep(seconds / 2))
    start = time.now
    wait.until(start, 0.010)
    assert time.now - start >= 0.010


def test_oversleep_is_taken_off_the_next_wait() -> None:
    time = FakeTime(late=0.001)
    wait = time.wait()
    start = time.now
    for _ in range(50):
        wait.until(time.now, 0.010)
    assert time.now - start == pytest.approx(0.5 + 0.001, abs=2e-4)  # the last oversleep only, not fifty of them


def test_a_stall_does_not_make_the_following_waits_free() -> None:
    time = FakeTime(late=5.0)
    wait = time.wait()
    wait.until(time.now, 0.010)
    time.late = 0.0
    start = time.now
    for _ in range(10):
        wait.until(time.now, 0.010)
    assert time.now - start >= 0.09 - 1e-6


def test_real_time_waits_at_least_as_long() -> None:
    wait = Wait()
    start = wait.clock()
    wait.until(start, 0.002)
    assert wait.clock() - start >= 0.002


def test_a_batch_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="on the CPU, not on meta"):
        emulated(FakeTime())(torch.zeros(1, 3, 8, 8, device="meta"))


def test_the_real_model_is_inside() -> None:
    model = EmulatedModel(nn.Linear(3, 2), 2, 0.0, 0.0)
    assert set(model.state_dict()) == {"model.weight", "model.bias"}
