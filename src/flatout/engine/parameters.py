"""Which parameters are trained, and with which rate and weight decay: names of parts, frozen parts, groups, layers."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from flatout.config.schema import ModelConfig, TrainConfig
from flatout.errors import ConfigError
from flatout.tasks.classification.emulated_model import EmulatedModel

_WITH_STATISTICS = (nn.modules.batchnorm._BatchNorm,)


def matches(name: str, pattern: str) -> bool:
    """`layer1` and `layer*` are all that is inside of them; `*.bias` is every bias."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def chosen(names: Collection[str], patterns: Sequence[str], key: str) -> set[str]:
    """Names that the patterns stand for, one after the other; `!` takes out. One that stands for nothing is refused."""
    found: set[str] = set()
    for pattern in patterns:
        these = {name for name in names if matches(name, pattern.removeprefix("!"))}
        if not these:
            parts = dict.fromkeys(part for name in names for part in _prefixes(name))
            near = difflib.get_close_matches(pattern.removeprefix("!"), parts, n=1)
            known = f"did you mean {near[0]}?" if near else f"its parts are {', '.join(_shown(names))}"
            raise ConfigError(f"{key} has {pattern!r}, which is no part of the model; {known}")
        found = found - these if pattern.startswith("!") else found | these
    return found


def freeze_until(model: nn.Module, config: ModelConfig, epoch: int) -> None:
    """Before an epoch, what model.freeze_from names for it and for those before: every attempt freezes the same."""
    for first in sorted(config.freeze_from):
        if first <= epoch:
            freeze(model, config.freeze_from[first], f"model.freeze_from.{first}")


def check_later_freezing(model: nn.Module, config: ModelConfig) -> None:
    """Before a run, what would be wrong in the middle of it."""
    trained = {name for name, p in bare(model).named_parameters() if p.requires_grad}
    names = [name for name, _ in bare(model).named_parameters()]
    for first in sorted(config.freeze_from):
        trained -= chosen(names, config.freeze_from[first], f"model.freeze_from.{first}")
    if config.freeze_from and not trained:
        raise ConfigError(
            f"model.freeze_from is {config.freeze_from}, which is all of the model in the end; leave something"
        )


def freeze(model: nn.Module, patterns: Sequence[str], key: str = "model.freeze") -> None:
    """These parameters stay as they are to the bit, and so do the statistics of norms all of whose own are frozen."""
    inner = bare(model)
    named = dict(inner.named_parameters())
    names = chosen(named, patterns, key)
    if names and not any(p.requires_grad for name, p in named.items() if name not in names):
        raise ConfigError(f"{key} is {list(patterns)}, which is all of the model; leave something to be trained")
    for name in names:
        named[name].requires_grad_(False)
    for path, module in inner.named_modules():
        own = [name for name, _ in module.named_parameters(path, recurse=False)]
        without = isinstance(module, _WITH_STATISTICS) and not own and any(matches(path, each) for each in patterns)
        if isinstance(module, _WITH_STATISTICS) and (without or (own and names.issuperset(own))):
            module.eval()
            module.train = _stay  # type: ignore[method-assign,assignment]


def _stay(mode: bool = True) -> None:
    """`train` of a module that stays as in validation."""


def bare(model: nn.Module) -> nn.Module:
    """The model whose parts have the names that a recipe knows."""
    return model.model if isinstance(model, EmulatedModel) else model


def parameter_groups(model: nn.Module, train: TrainConfig) -> list[dict[str, Any]]:
    """Matrices and filters decay; norms and biases do not: pulling a scale to zero only fights the layer it follows.

    Groups and parameters stand in the model's own order, so every process builds the same optimizer. Where the recipe
    has groups or layers, each group has a `name` and the `lr_scale` that its rate is multiplied by.
    """
    named = {name: p for name, p in bare(model).named_parameters() if p.requires_grad}
    if not named:
        raise ConfigError("the model has no parameters that are trained; give it some (model.name), or freeze less")
    places = _places(bare(model), named, train)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for decays in (True, False):
        for name, parameter in named.items():
            if (parameter.ndim > 1) != decays:
                continue
            label, scale, weight_decay = places.get(name, ("", 1.0, train.weight_decay))
            key = (label, scale, weight_decay if decays else 0.0)
            marks = {"name": label, "lr_scale": scale} if places else {}
            group = groups.setdefault(key, {"params": [], "weight_decay": key[2], **marks})
            group["params"].append(parameter)
    return list(groups.values())


def group_rates(groups: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The present rate of each part that has one of its own, as columns of steps.csv."""
    return {f"learning_rate:{group['name']}": group["lr"] for group in groups if group.get("name")}


def set_rates(groups: Sequence[dict[str, Any]], rate: float) -> None:
    for group in groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def _places(model: nn.Module, names: Collection[str], train: TrainConfig) -> dict[str, tuple[str, float, float]]:
    """Label, scale of the rate and weight decay of each parameter; empty where the recipe says nothing of parts."""
    if not train.groups and train.layer_decay is None:
        return {}
    places = dict.fromkeys(names, ("", 1.0, train.weight_decay))
    if train.layer_decay is not None:
        layers = [layer for layer in _layers(model) if any(name in places for name in layer[1])]
        for place, (label, members) in enumerate(layers):
            scale = train.layer_decay ** (len(layers) - 1 - place)
            places |= {name: (label, scale, train.weight_decay) for name in members if name in places}
    taken: set[str] = set()
    for number, group in enumerate(train.groups):
        key = f"train.groups.{number}.match"
        everything = [name for name, _ in model.named_parameters()]
        mine = chosen(everything, group.patterns, key) & set(places)
        if not mine:
            raise ConfigError(f"{key} is {group.match!r}, all of which is frozen (model.freeze); remove one of them")
        decay = train.weight_decay if group.weight_decay is None else group.weight_decay
        label = "+".join(group.patterns)
        places |= {name: (label, group.lr_scale * places[name][1], decay) for name in mine - taken}
        taken |= mine
    return _with_unique_labels(places)


def _with_unique_labels(places: dict[str, tuple[str, float, float]]) -> dict[str, tuple[str, float, float]]:
    """A group that cuts through layers has several rates: each is named by its factor too."""
    scales: dict[str, set[float]] = {}
    for label, scale, _ in places.values():
        scales.setdefault(label, set()).add(scale)
    return {
        name: (f"{label} x{scale:g}" if label and len(scales[label]) > 1 else label, scale, decay)
        for name, (label, scale, decay) in places.items()
    }


def _layers(model: nn.Module) -> list[tuple[str, list[str]]]:
    """Names of parameters by layer, from the input on: members of sequences, and modules between them. A norm belongs
    to the layer before it, and what the model holds itself to the first."""
    layers: list[tuple[str, list[str]]] = []
    own = [name for name, _ in model.named_parameters(recurse=False)]
    for path, module in _steps("", model):
        names = [name for name, _ in module.named_parameters(path)]
        vectors = all(p.ndim <= 1 for p in module.parameters())
        if layers and vectors:
            layers[-1][1].extend(names)
        elif names:
            layers.append((path, names))
    if own and layers:
        layers[0][1].extend(own)
    return layers


def _steps(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        holds = any(isinstance(each, nn.Sequential | nn.ModuleList) for each in child.children())
        if isinstance(child, nn.Sequential | nn.ModuleList) or (holds and not prefix):
            yield from _steps(f"{path}.", child)
        else:
            yield path, child


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _shown(names: Collection[str]) -> list[str]:
    first = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return first if len(first) <= 8 else [*first[:8], "..."]


def trained_share(model: nn.Module) -> tuple[int, int]:
    """Numbers that are trained, and all of them."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad), sum(p.numel() for p in model.parameters())
