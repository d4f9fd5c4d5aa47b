"""What is trained: model, optimizer, averaged weights, precision; and all of it as named tensors."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from flatout.config.schema import Config, ModelConfig
from flatout.decisions.compute import choose_kernels
from flatout.engine.channels_last import to_channels_last
from flatout.engine.cuda_defaults import choose_precision
from flatout.engine.devices import Device
from flatout.engine.eager_optimizer import EagerOptimizer
from flatout.engine.ema import Ema, Swa, average_for
from flatout.engine.emulated import (
    EmulatedEma,
    EmulatedLookahead,
    EmulatedOptimizer,
    EmulatedPrecision,
    EmulatedSwa,
)
from flatout.engine.lookahead import Lookahead
from flatout.engine.optimizers import load_optimizer_tensors, optimizer_for, optimizer_tensors
from flatout.engine.parameters import check_later_freezing, freeze, freeze_until
from flatout.engine.precision import Precision, build_precision
from flatout.engine.sharded_tensors import gather_full, shard_like
from flatout.errors import ConfigError
from flatout.tasks.classification.emulated_model import EmulatedModel
from flatout.tasks.protocol import FusesLayers, Task


@dataclass
class Learner:
    """All that training changes, of one rank."""

    model: nn.Module
    compute: nn.Module  # the model, or its compiled form
    wrapped: nn.Module  # what training calls: the same, or with an exchange of gradients in its backward
    optimizer: EagerOptimizer
    precision: Precision
    ema: Ema | None
    device: Device
    lookahead: Lookahead | None = None

    def begin_epoch(self, config: ModelConfig, epoch: int) -> None:
        """Before the first step that an attempt does in each epoch."""
        self.model.train()
        freeze_until(self.model, config, epoch)
        if self.ema is not None:
            self.ema.begin_epoch(epoch)

    def each_tensor(self) -> Iterator[tuple[str, Tensor]]:
        """Weights, optimizer state, averages and random state, by name; every tensor that decides what comes next.

        A sharded model is put together by all ranks, one tensor at a time: let go of each before asking for the next.
        """
        for name, value in self.model.state_dict().items():
            yield f"model/{name}", gather_full(value)
        for name, value in optimizer_tensors(self.model, self.optimizer).items():
            yield f"optimizer/{name}", gather_full(value)
        if self.ema is not None:
            yield from ((f"ema/{name}", value) for name, value in self.ema.tensors().items())
        if self.lookahead is not None:
            yield from ((f"lookahead/{name}", value) for name, value in self.lookahead.tensors().items())
        yield "rng/cpu", torch.get_rng_state()
        if self.device.kind == "cuda":
            yield "rng/cuda", torch.cuda.get_rng_state(self.device.torch)

    def tensors(self) -> dict[str, Tensor]:
        """All of them at once, where they are."""
        return dict(self.each_tensor())

    def load(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Take over a checkpoint's tensors; returns notes on what was not there and starts anew."""
        notes = []
        load_weights(self.model, tensors)
        self.load_optimizer(tensors)
        if self.ema is not None:
            if averages := under("ema/", tensors):
                self.ema.load(averages)
            else:
                self.ema = self.ema.restarted(self.model)
                notes.append("the checkpoint has no averaged weights: the average starts from its weights")
        if self.lookahead is not None:
            if slow := under("lookahead/", tensors):
                self.lookahead.load(slow)
            else:
                self.lookahead = self.lookahead.restarted(self.model)
                notes.append("the checkpoint has no slow weights (train.lookahead): they start from its weights")
        torch.set_rng_state(tensors["rng/cpu"])
        if self.device.kind == "cuda" and "rng/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng/cuda"], self.device.torch)
        return notes

    def restart_averages(self) -> None:
        """From the present weights: those before are not to be averaged with."""
        if self.ema is not None:
            self.ema = self.ema.restarted(self.model)
        if self.lookahead is not None:
            self.lookahead = self.lookahead.restarted(self.model)

    def load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        load_optimizer_tensors(self.model, self.optimizer, under("optimizer/", tensors))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode with the averaged weights, where there are any."""
        self.model.eval()
        try:
            with torch.inference_mode():
                if self.ema is None:
                    yield
                else:
                    with self.ema.applied(self.model):
                        yield
        finally:
            self.model.train()


def build_learner(task: Task, config: Config, device: Device) -> Learner:
    """Seeded: the same configuration gives the same first weights."""
    train = config.train
    torch.manual_seed(train.seed)
    model = task.build_model().to(device.torch)
    freeze(model, config.model.freeze)
    check_later_freezing(model, config.model)
    if train.channels_last and device.kind != "emulated":
        model = to_channels_last(model, device.kind)
    if choose_kernels(config, device.facts).value == "fused":
        _fuse_layers(task, model, config)
    optimizer = optimizer_for(model, train)
    precision = build_precision(choose_precision(config, device), device.torch.type)
    averages, ahead = (Ema, Swa), Lookahead
    if device.kind == "emulated":
        assert isinstance(model, EmulatedModel)
        optimizer, averages, ahead = EmulatedOptimizer(optimizer), (EmulatedEma, EmulatedSwa), EmulatedLookahead
        precision = EmulatedPrecision(precision.name, precision.device_type, model=model)
    ema = average_for(model, train, *averages)
    slow = None if train.lookahead is None else ahead.start(model, train.lookahead, train.lookahead_share)
    compute = cast(nn.Module, torch.compile(model)) if train.compile else model
    return Learner(model, compute, compute, optimizer, precision, ema, device, slow)


def _fuse_layers(task: Task, model: nn.Module, config: Config) -> None:
    if not isinstance(task, FusesLayers):
        raise ConfigError(
            f"train.kernels is fused, but the task {config.task} does not say how (FusesLayers, tasks/protocol.py); "
            "use train.kernels=torch"
        )
    task.fuse_layers(model)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Weights only, from a checkpoint of ours (model/...) or a plain state dict; nothing changes if one is wrong."""
    given = under("model/", tensors) or dict(tensors)
    own = model.state_dict()
    wrong = sorted(name for name in own.keys() | given.keys() if _shape(own, name) != _shape(given, name))
    if wrong:
        here, there = (_shape(each, wrong[0]) for each in (own, given))
        raise ConfigError(
            f"the weights do not fit the model: {wrong[0]!r} (the first of {len(wrong)} tensors) is "
            f"{here or 'missing'} in the model and {there or 'missing'} in the file; both must be of one model.* and "
            "number of classes"
        )
    model.load_state_dict({name: shard_like(own[name], value) for name, value in given.items()})


def state_digest(tensors: Mapping[str, Tensor]) -> str:
    """Digest of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None
