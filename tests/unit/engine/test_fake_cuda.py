"""State of a checkpoint, which is on the CPU, meets a model on a GPU that is not here."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout.config.schema import TrainConfig
from flatout.engine.ema import Ema
from flatout.engine.fake_cuda import CUDA, fakes, moved
from flatout.engine.learner import load_weights
from flatout.engine.optimizers import load_optimizer_tensors, optimizer_for, optimizer_tensors
from flatout.engine.parallel.batch_norm import GlobalBatchNorm, convert
from flatout.engine.parallel.powersgd import PowerSgd


def small_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))


def trained(**settings: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and its optimizer's state after a step, as a checkpoint has them."""
    model = small_model()
    optimizer = optimizer_for(model, TrainConfig(**settings))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer_tensors(model, optimizer)


def devices(values: Mapping[str, Tensor]) -> set[str]:
    return {value.device.type for value in values.values()}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "muon"])
def test_an_optimizer_goes_on_on_the_gpu(name: str, precision: str) -> None:
    settings = TrainConfig(optimizer=name, precision=precision)
    _, state = trained(optimizer=name)
    with fakes():
        model = moved(small_model(), CUDA, trains=True)
        optimizer = optimizer_for(model, settings)
        load_optimizer_tensors(model, optimizer, state)
        found = optimizer_tensors(model, optimizer)
        large = {key: value for key, value in found.items() if not key.startswith("step/")}
        assert devices(large) == {"cuda"}
        counts = {key: value for key, value in found.items() if key.startswith("step/")}
        assert devices(counts) <= ({"cuda"} if optimizer.defaults.get("fused") else {"cpu"})


def test_averages_and_weights_come_to_the_gpu() -> None:
    given, _ = trained()
    saved = {f"model/{name}": value for name, value in given.state_dict().items()}
    averages = Ema.start(given, 0.9).tensors()
    with fakes():
        model = moved(small_model(), CUDA, trains=True)
        load_weights(model, saved)
        assert devices(model.state_dict()) == {"cuda"}
        ema = Ema.start(model, 0.9)
        ema.load(averages)
        ema.update(model)
        with ema.applied(model):
            pass
        assert devices(ema.averages) == {"cuda"}


def test_powersgd_goes_on_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that was kept is added to a gradient on the device."""
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda flat: None)
    weight = nn.Parameter(torch.randn(64, 64))
    running, bucket = PowerSgd({id(weight): "w"}, 2, 0), SimpleNamespace(parameters=lambda: [weight])
    bucket.gradients = lambda: [torch.randn(64, 64)]
    running.reduce(bucket)
    saved = running.tensors()
    assert saved.keys() == {"error/w", "basis/w"}
    with fakes():
        resumed = PowerSgd({id(weight): "w"}, 2, 0)
        resumed.load(saved, CUDA)
        assert devices(resumed.tensors()) == {"cuda"}
        bucket.gradients = lambda: [torch.empty(weight.shape, device=CUDA)]
        resumed.reduce(bucket)


def test_batch_norm_on_a_gpu_is_torchs_where_parts_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are for GPUs only; that they are chosen, and when, is all that can be said here."""
    chosen: list[str] = []
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda self, x: (chosen.append("torch"), x)[1])
    monkeypatch.setattr(
        "flatout.engine.parallel.batch_norm._Normalise.apply",
        lambda x, *_: (chosen.append("ours"), (x, *(x.mean((0, 2, 3)) for _ in range(2)), x.new_ones(())))[1],
    )
    with fakes():
        norm = moved(convert(nn.Sequential(nn.BatchNorm2d(8))), CUDA)[0]
        assert isinstance(norm, GlobalBatchNorm)
        for equal_parts in (False, True):
            norm.equal_parts = equal_parts
            norm(torch.empty(2, 8, 4, 4, device=CUDA))
    assert chosen == ["ours", "torch"]
