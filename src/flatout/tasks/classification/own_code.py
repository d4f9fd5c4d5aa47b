"""A loss and metrics of the user's own, and a trial of user code on a made-up batch before a run writes anything."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from flatout import plugins
from flatout.config.schema import MetricConfig, TrainConfig
from flatout.config.sections.train import LOSSES
from flatout.config.tasks import METRICS, metric_named
from flatout.errors import ConfigError
from flatout.tasks.protocol import Loss, Sums, ValidationMetric

_TRIED = 2  # samples
_TRIED_AGAIN = 64


def open_loss(train: TrainConfig) -> Loss | None:
    """None for the shipped one."""
    if train.loss in LOSSES:
        return None
    found = plugins.load("losses", train.loss, "train.loss")
    with plugins.blamed(f"train.loss is {train.loss!r}"):
        loss = plugins.made(found, train.loss_options)
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ConfigError(f"train.loss is {train.loss!r}, which has parameters that nobody trains; put them in a model")
    return cast(Loss, loss)


def open_metrics(configured: Sequence[MetricConfig]) -> dict[str, ValidationMetric]:
    """By the names of their columns; one that others would read the wrong way round is refused."""
    found: dict[str, ValidationMetric] = {}
    for each in configured:
        what, made = f"validate.metrics has {each.name!r}", plugins.load("metrics", each.name, "validate.metrics")
        with plugins.blamed(what):
            metric = cast(ValidationMetric, made(**each.options))
        missing = [name for name in ("better", "sums", "value") if not hasattr(metric, name)]
        if missing:
            raise ConfigError(f"{what}, which has no {missing[0]}; see ValidationMetric in docs/extend.md")
        name = str(getattr(metric, "name", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()))
        if name in found or name in METRICS or not re.fullmatch(r"[a-z]\w*", name):
            raise ConfigError(f"{what}, whose column would be {name!r}; give it a name that is free, as its `name`")
        if metric.better != (better := metric_named(name).better):
            raise ConfigError(
                f"{what}: its better is {metric.better!r} but by the name {name!r} it counts as {better}; names of "
                "what should fall end in loss, error or perplexity"
            )
        found[name] = metric
    return found


def metric_sums(metrics: Mapping[str, ValidationMetric], outputs: Tensor, labels: Tensor) -> Sums:
    return {
        f"{name}/{key}": float(value)
        for name, metric in metrics.items()
        for key, value in metric.sums(outputs, labels).items()
    }


def metric_values(metrics: Mapping[str, ValidationMetric], sums: Sums) -> dict[str, float]:
    values = {}
    for name, metric in metrics.items():
        own = {key.removeprefix(f"{name}/"): value for key, value in sums.items() if key.startswith(f"{name}/")}
        values[name] = float(metric.value(own))
    return values


def try_model(model: nn.Module, images: Tensor, classes: int, name: str) -> Tensor:
    """Logits of images that mean nothing, as in validation and then as in training; what is wrong with them, and a
    parameter that they do not depend on, is a ConfigError. Leaves model and random state as they were."""
    kept = {name: value.clone() for name, value in model.named_buffers()}
    devices = [images.device] if images.is_cuda else []
    try:
        with plugins.blamed(f"model.name is {name!r}"), torch.random.fork_rng(devices):
            with torch.no_grad():
                logits = _checked(model.eval()(images), images, classes, name)
            unused = _unused(model, _checked(model.train()(images), images, classes, name))
            if unused:  # which part of a model an image goes through may depend on the image
                noise = torch.randn(_TRIED_AGAIN, *images.shape[1:], device=images.device)
                unused = unused & _unused(model, model(noise))
    finally:
        for buffer, value in kept.items():
            model.get_buffer(buffer).copy_(value)
        model.train()
    if unused:
        first = next(each for each, _ in model.named_parameters() if each in unused)
        raise ConfigError(
            f"model.name is {name!r}, whose parameter {first} receives no gradient: it would never be trained; use it "
            "in the model's forward, remove it, or name it in model.freeze"
        )
    return logits


def _checked(logits: object, images: Tensor, classes: int, name: str) -> Tensor:
    if isinstance(logits, Tensor) and tuple(logits.shape) == (len(images), classes):
        return logits
    got = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
    raise ConfigError(
        f"model.name is {name!r}, which gives {got} for images {list(images.shape)}; it must give logits "
        f"{[len(images), classes]}, one for each of {classes} classes"
    )


def _unused(model: nn.Module, logits: Tensor) -> set[str]:
    """Parameters to be trained that the logits do not depend on."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not logits.requires_grad:
        return {name for name, _ in trained}
    gradients = torch.autograd.grad(logits.float().sum(), [each for _, each in trained], allow_unused=True)
    return {name for (name, _), gradient in zip(trained, gradients, strict=True) if gradient is None}


def try_loss(loss: Loss, logits: Tensor, name: str) -> None:
    what, outputs = f"train.loss is {name!r}", logits.detach().float().requires_grad_()
    labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    with plugins.blamed(what):
        losses = loss(outputs, labels)
    if not isinstance(losses, Tensor) or losses.shape != labels.shape:
        got = list(losses.shape) if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise ConfigError(
            f"{what}, which gives {got} for {len(labels)} samples; it must give one value for each of them"
        )
    if not losses.requires_grad:
        raise ConfigError(
            f"{what}, whose value does not depend on the outputs as torch sees it: nothing would be trained"
        )


def try_metrics(metrics: Mapping[str, ValidationMetric], logits: Tensor) -> None:
    labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    for name, metric in metrics.items():
        with plugins.blamed(f"validate.metrics has {name}"):
            metric_values({name: metric}, metric_sums({name: metric}, logits.float(), labels))


def trial_images(side: int, device: torch.device) -> Tensor:
    return torch.zeros(_TRIED, 3, side, side, device=device)
