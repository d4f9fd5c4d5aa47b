"""Dropout by numbers of 16 bits: how often, how much, and always the same for the same seed."""

import pytest
import torch

from flatout.tasks.translation.dropout import Dropout

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.mark.parametrize("p", [0.1, 0.15, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_are_dropped_as_asked_for_and_the_mean_stays(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    found = Dropout(p)(torch.ones(400_001, dtype=dtype)).float()
    assert found.dtype == torch.float32
    assert (found == 0).float().mean().item() == pytest.approx(p, abs=0.004)
    assert found.double().mean().item() == pytest.approx(1.0, rel=0.02)
    for lane in range(4):  # no quarter of a number is less random than the others
        assert (found[lane::4] == 0).float().mean().item() == pytest.approx(p, abs=0.008)


def test_the_generator_decides_and_the_gradient_is_that_of_the_same_mask() -> None:
    layer, x = Dropout(0.3), torch.ones(7, 5, requires_grad=True)
    torch.manual_seed(1)
    first = layer(x)
    second = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, first.detach())


@pytest.mark.parametrize("p", [0.0, 0.999999])
def test_the_ends(p: float) -> None:
    assert Dropout(p)(torch.ones(1000)).isfinite().all()
    assert torch.equal(Dropout(p).eval()(torch.ones(10)), torch.ones(10))
