"""Frozen parts do not move by a bit; groups and layers have their own rates and weight decay."""

import pytest
import torch
from torch import nn

from flatout.config.loading import load_config
from flatout.engine.ema import Ema
from flatout.engine.optimizers import load_optimizer_tensors, optimizer_for, optimizer_tensors
from flatout.engine.parameters import (
    check_later_freezing,
    freeze,
    freeze_until,
    group_rates,
    parameter_groups,
    set_rates,
)
from flatout.errors import ConfigError
from flatout.tasks.classification.resnet import ResNet, resnet
from flatout.tasks.translation.transformer import build_transformer


def small() -> ResNet:
    torch.manual_seed(0)
    return resnet("resnet18", 4, "small", 0.125)


def train(**values: object):  # type: ignore[no-untyped-def]
    return load_config({"train": values}).config.train


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb"])
def test_frozen_parts_and_their_statistics_do_not_move(optimizer: str) -> None:
    model = small()
    freeze(model, ["conv1", "bn1", "layer1", "layer2.0.bn?", "*.downsample"])
    ema = Ema.start(model, 0.9)
    built = optimizer_for(model, train(optimizer=optimizer, weight_decay=0.1, lr=0.1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(3):
        model.train()
        model(torch.randn(4, 3, 16, 16)).square().mean().backward()
        built.step()
        built.zero_grad()
        ema.update(model)
        model.eval()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    still = before.keys() - moved
    for name in (
        "conv1.weight",
        "bn1.weight",
        "bn1.running_mean",
        "bn1.num_batches_tracked",
        "layer1.0.bn2.running_var",
    ):
        assert name in still
    assert {name for name in before if name.startswith(("conv1", "bn1", "layer1.", "layer2.0.bn"))} <= still
    assert {"layer2.0.conv1.weight", "layer2.1.bn1.running_mean", "fc.bias"} <= moved
    for name in still & ema.averages.keys():
        assert torch.equal(ema.averages[name], before[name])


def test_parts_are_frozen_from_an_epoch_on_and_backward_ends_before_them() -> None:
    config = load_config({"model": {"freeze_from": {2: ["conv1", "bn1"], 4: ["layer1"]}}}).config.model
    model, built = small(), None
    for epoch in (0, 2, 4):
        model.train()
        freeze_until(model, config, epoch)
        built = built or optimizer_for(model, train(lr=0.1, weight_decay=0.1))  # it began with all of them
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model(torch.randn(4, 3, 16, 16)).square().mean().backward()
        without = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is None}
        assert without == {0: set(), 2: {"conv1", "bn1"}, 4: {"conv1", "bn1", "layer1"}}[epoch]
        built.step()
        built.zero_grad()
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        assert without.isdisjoint(name.partition(".")[0] for name in moved)
        assert "layer2.0.conv1.weight" in moved
    resumed = small()  # an attempt that begins in a later epoch
    freeze_until(resumed, config, 5)
    assert [p.requires_grad for p in resumed.parameters()] == [p.requires_grad for p in model.parameters()]
    assert [each.training for each in resumed.train().modules()] == [each.training for each in model.modules()]


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ({3: ["layr1"]}, "model.freeze_from.3 has 'layr1', which is no part of the model; did you mean layer1"),
        ({1: ["layer?", "bn1"], 2: ["conv1", "fc"]}, "is all of the model in the end"),
    ],
)
def test_what_cannot_be_frozen_later_is_said_before_the_run(later: dict[int, list[str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_later_freezing(small(), load_config({"model": {"freeze_from": later}}).config.model)


def test_all_but_the_head() -> None:
    model = small()
    freeze(model, ["*", "!fc"])
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]
    assert not any(module.training for module in model.train().modules() if isinstance(module, nn.BatchNorm2d))


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["layr1"], "has 'layr1', which is no part of the model; did you mean layer1"),
        (["zzz"], "its parts are conv1, bn1, layer1"),
        (["*"], "which is all of the model"),
        (["layer1", "!nothing"], "has '!nothing'"),
    ],
)
def test_what_cannot_be_frozen_is_said(patterns: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("*", r"\*")):
        freeze(small(), patterns)


def test_groups_have_their_rate_and_decay() -> None:
    groups = [{"match": "fc", "lr_scale": 10}, {"match": ["layer4", "fc"], "weight_decay": 0.5}]
    settings = train(weight_decay=0.1, groups=groups)
    model = small()
    freeze(model, ["conv1"])
    built = parameter_groups(model, settings)
    found = {(g["name"], g["lr_scale"], g["weight_decay"]): {id(p) for p in g["params"]} for g in built}
    assert set(found) == {
        ("", 1.0, 0.1), ("", 1.0, 0.0), ("fc", 10.0, 0.1), ("fc", 10.0, 0.0), ("layer4+fc", 1.0, 0.5), ("layer4+fc", 1.0, 0.0)
    }  # fmt: skip
    assert found["fc", 10.0, 0.0] == {id(model.fc.bias)}, "norms and biases do not decay"
    assert sum(map(len, found.values())) == sum(p.requires_grad for p in model.parameters())
    set_rates(built, 0.5)
    assert group_rates(built) == {"learning_rate:fc": 5.0, "learning_rate:layer4+fc": 0.5}
    freeze(model, ["fc"])
    with pytest.raises(ConfigError, match=r"train.groups.0.match is 'fc', all of which is frozen"):
        parameter_groups(model, settings)


def test_each_layer_has_a_part_of_the_rate_of_the_next() -> None:
    built = parameter_groups(small(), train(layer_decay=0.5, groups=[{"match": "fc", "lr_scale": 2}]))
    set_rates(built, 1.0)
    rates = group_rates(built)
    names = ["conv1", *(f"layer{a}.{b}" for a in (1, 2, 3, 4) for b in (0, 1)), "fc"]
    assert [rates[f"learning_rate:{name}"] for name in names] == [*(0.5 ** (9 - place) for place in range(9)), 2.0]
    assert len(rates) == len(names), "a norm belongs to the layer before it"


def test_layers_of_a_transformer() -> None:
    model = build_transformer("transformer-small", 50, 0.0625, 0.0, True, False)
    scales = [group["lr_scale"] for group in parameter_groups(model, train(layer_decay=0.8))]
    assert len(set(scales)) > 3
    assert max(scales) == 1.0


def test_no_groups_are_the_two_of_before() -> None:
    assert [set(group) for group in parameter_groups(small(), train())] == [{"params", "weight_decay"}] * 2


@pytest.mark.parametrize("name", ["RMSprop", "Adadelta", "Adafactor", "NAdam"])
def test_the_state_of_an_optimizer_of_torch_goes_through_a_checkpoint(name: str) -> None:
    settings = train(optimizer=f"torch.optim:{name}", lr=0.01)

    def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = optimizer_for(model, settings)
    stepped(model, optimizer)
    again = nn.Linear(3, 4)
    again.load_state_dict(model.state_dict())
    resumed = optimizer_for(again, settings)
    load_optimizer_tensors(
        again, resumed, {key: value.clone() for key, value in optimizer_tensors(model, optimizer).items()}
    )
    for _ in range(2):
        stepped(model, optimizer)
        stepped(again, resumed)
    assert torch.equal(model.weight, again.weight)
