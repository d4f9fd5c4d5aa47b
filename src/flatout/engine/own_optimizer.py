"""An optimizer of the user's own: tried on two parameters first, so that what could not be resumed is refused."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from flatout import plugins
from flatout.config.schema import TrainConfig
from flatout.errors import ConfigError

_KEY = "train.optimizer"


def build_own(groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
    """Called as `Name(groups, lr=..., **train.optimizer_options)`, as those of torch.optim are."""
    factory = plugins.load("optimizers", train.optimizer, _KEY)
    names, numbers = _tried(factory, train)
    optimizer = _made(factory, groups, train)
    for name, value in {"kind": train.optimizer, "state_names": names, "number_names": numbers}.items():
        setattr(optimizer, name, value)
    return optimizer


def _made(factory: Callable[..., Any], groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
    with plugins.blamed(f"{_KEY} is {train.optimizer!r}"):
        optimizer = factory(groups, lr=train.lr, **train.optimizer_options)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"{_KEY} is {train.optimizer!r}, which made a {type(optimizer).__name__}, no torch Optimizer")
    return optimizer


def _tried(factory: Callable[..., Any], train: TrainConfig) -> tuple[frozenset[str], frozenset[str]]:
    """Names of its state, and those of them that are Python numbers."""
    tried = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]  # some treat matrices in a way of their own
    optimizer = _made(factory, [{"params": tried, "weight_decay": 0.0}], train)
    before = _settings(optimizer)
    for parameter in tried:
        parameter.grad = torch.full_like(parameter, 0.1)
    with plugins.blamed(f"{_KEY} is {train.optimizer!r}"):
        optimizer.step()
    if changed := [name for name, value in _settings(optimizer).items() if before.get(name) != value]:
        raise ConfigError(
            f"{_KEY} is {train.optimizer!r}, which keeps {changed[0]!r} in its parameter groups: a checkpoint holds "
            "only its state of each parameter; keep it there"
        )
    states = [cast(Mapping[str, Any], optimizer.state.get(parameter, {})) for parameter in tried]
    state = [each for one in states for each in one.items()]
    for name, value in state:
        if value is not None and not isinstance(value, torch.Tensor | int | float):
            raise ConfigError(
                f"{_KEY} is {train.optimizer!r}, whose state {name!r} is a {type(value).__name__}: a checkpoint holds "
                "tensors and numbers"
            )
    numbers = [name for name, value in state if isinstance(value, int | float)]
    return frozenset(name for name, _ in state), frozenset(numbers)


def _settings(optimizer: Optimizer) -> dict[str, str]:
    """Of its only group, as text: tensors compare to tensors."""
    (group,) = optimizer.param_groups
    return {name: repr(value) for name, value in group.items() if name != "params"}
