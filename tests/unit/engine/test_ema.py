"""Averaged weights: against a plain loop, through a checkpoint, and swapped in without a trace."""

import pytest
import torch
from torch import Tensor, nn

from flatout.engine.ema import Ema, Swa
from flatout.errors import ConfigError


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def change_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    model.train()(torch.randn(8, 3))  # moves the running statistics too


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("warm_up", [True, False])
def test_the_average_follows_the_plain_loop(warm_up: bool) -> None:
    model = small_model()
    ema = Ema.start(model, decay=0.6, warm_up=warm_up)
    expected = {name: p.detach().double() for name, p in model.named_parameters()}
    for t in range(12):
        change_weights(model)
        ema.update(model)
        decay = min(0.6, (1 + t) / (10 + t)) if warm_up else 0.6
        for name, p in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double()
    for name, average in expected.items():
        torch.testing.assert_close(ema.averages[name].double(), average, rtol=1e-5, atol=1e-6)


def test_applied_gives_averages_with_live_statistics_and_restores_every_bit() -> None:
    model = small_model()
    ema = Ema.start(model, decay=0.9)
    for _ in range(3):
        change_weights(model)
        ema.update(model)
    before, addresses = copies(model), [p.data_ptr() for p in model.parameters()]
    with ema.applied(model):
        inside = copies(model)
        for name, value in inside.items():
            assert torch.equal(value, ema.averages.get(name, before[name])), name
        assert not torch.equal(inside["0.weight"], before["0.weight"])
    assert_same(copies(model), before)
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_weights_come_back_after_a_failed_validation() -> None:
    model = small_model()
    ema = Ema.start(model, decay=0.9)
    change_weights(model)
    before = copies(model)
    with pytest.raises(ZeroDivisionError), ema.applied(model):
        _ = 1 / 0
    assert_same(copies(model), before)


def test_training_goes_on_after_applied() -> None:
    model = small_model()
    ema = Ema.start(model, decay=0.9)
    loss = model(torch.randn(4, 3)).sum()
    with ema.applied(model), torch.no_grad():
        model.eval()(torch.randn(4, 3))
    model.train()(torch.randn(4, 3)).sum().backward()
    assert loss.requires_grad
    assert all(p.grad is not None for p in model.parameters())


def test_a_checkpoint_continues_to_the_bit() -> None:
    model = small_model()
    whole = Ema.start(model, decay=0.99)
    for _ in range(4):
        change_weights(model)
        whole.update(model)
    resumed = Ema.start(small_model(seed=1), decay=0.99)
    resumed.load({name: value.clone() for name, value in whole.tensors().items()})
    for _ in range(4):
        change_weights(model)
        whole.update(model)
        resumed.update(model)
    assert_same(whole.tensors(), resumed.tensors())
    assert resumed.updates == 8


@pytest.mark.parametrize("fault", ["missing", "extra", "shape", "updates"])
def test_a_checkpoint_of_another_model_is_refused(fault: str) -> None:
    ema = Ema.start(small_model(), decay=0.99)
    tensors = ema.tensors()
    if fault in ("missing", "updates"):
        del tensors["updates" if fault == "updates" else "average/0.weight"]
    elif fault == "extra":
        tensors["average/9.weight"] = torch.zeros(1)
    else:
        tensors["average/0.weight"] = torch.zeros(5, 5)
    with pytest.raises(ConfigError, match="do not fit the model"):
        ema.load(tensors)


def test_swa_is_the_mean_of_all_weights_from_an_epoch_on() -> None:
    model = small_model()
    swa, seen = Swa.over_end(model, 0.5, epochs=4), []
    for epoch in range(4):
        swa.begin_epoch(epoch)
        for _ in range(3):
            change_weights(model)
            swa.update(model)
            seen.append({name: p.detach().double().clone() for name, p in model.named_parameters()})
        if epoch == 1:  # nothing is averaged yet: what would be validated and kept is the model itself
            own = copies(model)
            with swa.applied(model):
                assert_same(copies(model), own)
            assert swa.tensors().keys() == {"updates"}
    for name, average in swa.averages.items():
        mean = torch.stack([each[name] for each in seen[6:]]).mean(0)
        assert torch.allclose(average.double(), mean, atol=1e-6)
    resumed = Swa.over_end(small_model(1), 0.5, epochs=4)
    resumed.load(swa.tensors())
    assert_same(resumed.averages, swa.averages)
    assert resumed.updates == swa.updates == 6
    fresh = resumed.restarted(model)
    assert (fresh.updates, fresh.first_epoch) == (0, 2)
    fresh.load({"updates": torch.tensor(0)})
    assert fresh.updates == 0


@pytest.mark.parametrize(("share", "epochs", "first"), [(0.75, 16, 12), (0.0, 3, 0), (0.99, 4, 3), (0.5, 1, 0)])
def test_swa_has_the_last_epoch_at_least(share: float, epochs: int, first: int) -> None:
    assert Swa.over_end(small_model(), share, epochs).first_epoch == first
