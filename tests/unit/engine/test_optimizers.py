"""Optimizers: who decays, LAMB against its formula, and state that survives a checkpoint to the bit."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from flatout.config.schema import TrainConfig
from flatout.engine import optimizers
from flatout.engine.optimizers import (
    Lamb,
    Sgd,
    describe_optimizer,
    load_optimizer_tensors,
    optimizer_for,
    optimizer_tensors,
    parameter_groups,
)
from flatout.errors import ConfigError
from flatout.tasks.classification.resnet import resnet

NAMES = ["sgd", "adamw", "lamb", "muon"]


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return resnet("resnet18", 5, stem="small", width=0.125).to(memory_format=torch.channels_last)


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(4, 3, 16, 16, generator=generator)
        labels = torch.randint(5, (4,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def build(model: nn.Module, name: str, **settings: Any) -> Optimizer:
    return optimizer_for(model, TrainConfig(optimizer=name, **{"lr": 0.01, "weight_decay": 0.05} | settings))


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole = new_model(0)
    optimizer = build(whole, name)
    train(whole, optimizer, range(3))
    save_file({k: v.contiguous() for k, v in whole.state_dict().items()}, tmp_path / "weights")
    save_file({k: v.contiguous() for k, v in optimizer_tensors(whole, optimizer).items()}, tmp_path / "optimizer")
    train(whole, optimizer, range(3, 6))

    resumed = new_model(1)
    resumed.load_state_dict(load_file(tmp_path / "weights"))
    resumed_optimizer = build(resumed, name)
    load_optimizer_tensors(resumed, resumed_optimizer, load_file(tmp_path / "optimizer"))
    train(resumed, resumed_optimizer, range(3, 6))

    assert_equal(whole.state_dict(), resumed.state_dict())
    assert_equal(optimizer_tensors(whole, optimizer), optimizer_tensors(resumed, resumed_optimizer))


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        assert value.dtype == second[name].dtype, name


@pytest.mark.parametrize(
    ("name", "state_names"),
    [
        ("sgd", {"momentum_buffer"}),
        ("adamw", {"step", "exp_avg", "exp_avg_sq"}),
        ("lamb", {"step", "exp_avg", "exp_avg_sq"}),
    ],
)
def test_state_is_named_by_parameter(name: str, state_names: set[str]) -> None:
    model = new_model(0)
    optimizer = build(model, name)
    assert optimizer_tensors(model, optimizer) == {}
    train(model, optimizer, range(1))
    expected = {f"{state}/{parameter}" for state in state_names for parameter, _ in model.named_parameters()}
    assert set(optimizer_tensors(model, optimizer)) == expected


def test_state_fits_an_optimizer_with_other_groups() -> None:
    model = new_model(0)
    optimizer = build(model, "sgd")
    train(model, optimizer, range(2))
    one_group = Sgd(reversed(list(model.parameters())), lr=0.1, momentum=0.9)
    load_optimizer_tensors(model, one_group, optimizer_tensors(model, optimizer))
    assert_equal(optimizer_tensors(model, optimizer), optimizer_tensors(model, one_group))


def test_loaded_state_is_a_copy_in_the_parameters_memory_format() -> None:
    model = new_model(0)
    optimizer = build(model, "adamw")
    train(model, optimizer, range(1))
    saved = {name: value.clone(memory_format=torch.contiguous_format) for name, value in
             optimizer_tensors(model, optimizer).items()}  # fmt: skip
    load_optimizer_tensors(model, optimizer, saved)
    weight = dict(model.named_parameters())["layer1.0.conv1.weight"]
    assert optimizer.state[weight]["exp_avg"].stride() == weight.stride()
    assert not optimizer.state[weight]["exp_avg"].requires_grad
    kept = saved["exp_avg/layer1.0.conv1.weight"].clone()
    train(model, optimizer, range(1, 2))
    assert torch.equal(saved["exp_avg/layer1.0.conv1.weight"], kept)


def test_state_that_does_not_fit_changes_nothing() -> None:
    model = new_model(0)
    optimizer = build(model, "sgd")
    train(model, optimizer, range(1))
    before = {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}
    good = before["momentum_buffer/conv1.weight"]
    for key, value, message in [
        ("exp_avg/conv1.weight", good, "keeps only momentum_buffer"),
        ("momentum_buffer/layer9.weight", good, "no such parameter"),
        ("momentum_buffer/conv1.weight", torch.zeros(3), r"its shape is \[3\]"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_optimizer_tensors(model, optimizer, {"momentum_buffer/fc.bias": torch.ones(5), key: value})
        assert_equal(optimizer_tensors(model, optimizer), before)


def test_norms_and_biases_do_not_decay() -> None:
    model = new_model(0)
    decayed, others = parameter_groups(model, TrainConfig(weight_decay=0.05))
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.05, 0.0)
    names = {id(p): name for name, p in model.named_parameters()}
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    assert [names[id(p)] for p in decayed["params"]] == [n for n, p in model.named_parameters() if p.ndim > 1]
    assert {type(owners[id(p)]) for p in others["params"]} == {nn.BatchNorm2d, nn.Linear}
    assert [names[id(p)] for p in others["params"] if isinstance(owners[id(p)], nn.Linear)] == ["fc.bias"]
    assert len(decayed["params"]) + len(others["params"]) == len(names)


def test_frozen_parameters_and_empty_groups_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert [group["params"] for group in build(model, "sgd").param_groups] == [[model.weight]]


def test_nesterov_needs_momentum() -> None:
    assert build(nn.Linear(2, 2), "sgd").param_groups[0]["nesterov"] is True
    assert build(nn.Linear(2, 2), "sgd", momentum=0.0).param_groups[0]["nesterov"] is False


def test_every_setting_reaches_the_optimizer_and_its_description() -> None:
    told = describe_optimizer(build(nn.Linear(3, 2), "adamw", beta2=0.95))
    assert told["name"] == "adamw"
    seen = [(each["parameters"], each["betas"], each["weight_decay"]) for each in told["groups"]]
    assert seen == [(6, (0.9, 0.95), 0.05), (2, (0.9, 0.95), 0.0)]
    assert "lr" not in told["groups"][0]
    assert describe_optimizer(build(nn.Linear(3, 2), "sgd", momentum=0.8))["groups"][0]["momentum"] == 0.8
    assert describe_optimizer(build(nn.Linear(3, 2), "lamb", beta2=0.9))["groups"][0]["betas"] == (0.9, 0.9)


def test_nobody_else_builds_an_optimizer() -> None:
    """A second place would forget a setting sooner or later, as the one for sharded models did."""
    source = Path(optimizers.__file__).parents[1]
    built = re.compile(r"\b(SGD|Sgd|AdamW?|Lamb|optimizer_for)\(")
    found = {
        str(path.relative_to(source)): sorted(set(built.findall(path.read_text()))) for path in source.rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == {
        "engine/optimizers.py": ["AdamW", "Lamb", "Sgd", "optimizer_for"],
        "engine/learner.py": ["optimizer_for"],
        "engine/parallel/joining.py": ["optimizer_for"],
        "commands/rehearse.py": ["optimizer_for"],
        "commands/traced_model.py": ["optimizer_for"],  # through the same builder: what a plan traces
    }


def train_scaled(model: nn.Module, optimizer: Optimizer, rows: list[list[Tensor]]) -> None:
    """Steps of fp16, with these gradients."""
    scaler = GradScaler("cpu", init_scale=2.0**4)
    for gradients in rows:
        scaler.scale(torch.ones(()))  # it makes its scale when it is first asked
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient * scaler.get_scale()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@pytest.fixture
def _garbage() -> Iterator[None]:
    """Memory that nobody wrote to is full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_garbage")
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_overflows_never_was(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where the device decides it: the first one too, which is the one that overflows most often."""
    monkeypatch.setattr(optimizers, "_can_fuse", lambda model: True)
    torch.manual_seed(0)
    models = [nn.Linear(3, 4), nn.Linear(3, 4)]
    models[1].load_state_dict(models[0].state_dict())
    good = [[torch.randn_like(p) for p in models[0].parameters()] for _ in range(3)]
    endless = [torch.full_like(p, float("inf")) for p in models[0].parameters()]
    wrong = [torch.full_like(p, float("nan")) for p in models[0].parameters()]
    built = [build(model, name, **settings) for model in models]
    train_scaled(models[0], built[0], good)
    train_scaled(models[1], built[1], [endless, good[0], wrong, good[1], good[2], endless])
    assert_equal(models[0].state_dict(), models[1].state_dict())
    tensors = [optimizer_tensors(model, each) for model, each in zip(models, built, strict=True)]
    assert_equal(*tensors)
    assert all(bool(value.isfinite().all()) for value in tensors[0].values())


@pytest.mark.parametrize("name", NAMES)
def test_a_fused_step_is_the_same_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fused = new_model(0), new_model(0)
    train(plain, build(plain, name), range(3))
    monkeypatch.setattr(optimizers, "_can_fuse", lambda model: True)
    train(fused, build(fused, name), range(3))
    for (parameter, value), other in zip(plain.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-5, msg=parameter)


def lamb_reference(weights: list[Tensor], grads: list[list[Tensor]], lr: float, decays: list[float]) -> list[Tensor]:
    """The paper's algorithm, one tensor and one line at a time, in float64."""
    results = []
    for index, (weight, decay) in enumerate(zip(weights, decays, strict=True)):
        w, m, v = weight.double(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
        for step, gradients in enumerate(grads, 1):
            g = gradients[index].double()
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            update = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-6) + decay * w
            size, length = w.norm().item(), update.norm().item()
            trust = size / length if decay and size > 0 and length > 0 else 1.0
            w = w - lr * trust * update
        results.append(w)
    return results


def test_lamb_follows_its_formula() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)  # a trust ratio of zero would freeze it
    parameters = list(model.parameters())
    start = [p.detach().clone() for p in parameters]
    grads = [[torch.randn_like(p) for p in parameters] for _ in range(5)]
    optimizer = build(model, "lamb", lr=0.02, weight_decay=0.1)
    for gradients in grads:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    decays = [0.1 if p.ndim > 1 else 0.0 for p in parameters]
    for parameter, expected in zip(parameters, lamb_reference(start, grads, 0.02, decays), strict=True):
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_lamb_skips_parameters_without_gradient() -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([used, unused], lr=0.1, weight_decay=0.1)
    (used**2).sum().backward()
    optimizer.step()
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))
