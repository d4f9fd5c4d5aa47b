"""What the engine needs to know about what is learned: nothing but this."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Sums = dict[str, float]  # additive over batches and ranks; always has "samples"


class Loss(Protocol):
    """One of the user's own: `train.loss: ./file.py:Name`, or an entry point of flatout.losses. A function gets
    train.loss_options with every call; a class, which may be a module without parameters, is made with them."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One value for each sample, so that mixing and accumulation can weigh them."""
        ...


class ValidationMetric(Protocol):
    """One of the user's own, made with its options: `validate.metrics: ["./file.py:Name"]`, or an entry point of
    flatout.metrics. Its column is called `name`, or like its class."""

    better: str  # higher | lower

    def sums(self, outputs: Tensor, labels: Tensor) -> Sums:
        """Additive over batches and ranks, so that a validation split over ranks gives the same figure."""
        ...

    def value(self, sums: Sums) -> float: ...


@runtime_checkable
class TriesOut(Protocol):
    """A task that can try user code on a made-up batch, before a run writes anything."""

    def try_out(self, model: nn.Module, device: torch.device) -> None: ...


@runtime_checkable
class NamesOutputs(Protocol):
    """A task whose model gives a probability for each of several names: classify and export can use it."""

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """In the order of the outputs; None: the classes of the data, of which every sample has one."""
        ...

    def probabilities(self, logits: Tensor) -> Tensor: ...


@runtime_checkable
class FusesLayers(Protocol):
    """A task that can compute its model's layers by compiled code of its own (train.kernels: fused)."""

    def fuse_layers(self, model: nn.Module) -> None: ...


class JudgesSamples(Protocol):
    """A task that can be trained with train.selective."""

    def harder(self, model: nn.Module, inputs: Any) -> Any:
        """The part of the inputs that the model does worse on."""
        ...


class Task(Protocol):
    """Builds the model, turns a batch into a loss, and counts how good the model is."""

    def build_model(self) -> nn.Module: ...

    def to_device(self, batch: Any, device: Any) -> Any:
        """Inputs on the device, of which the copy may still be under way: a tensor, or a dataclass, mapping or sequence
        that holds tensors. Whoever calls it keeps the batch until then (engine/copying.py)."""
        ...

    def weight(self, inputs: Any) -> float:
        """What the inputs count for in a mean over several of them: samples, or whatever the loss is a mean over."""
        ...

    def filler(self, inputs: Any) -> Any:
        """One made-up sample of the shape of these empty inputs, for a rank that has none of a batch."""
        ...

    def parts(self, inputs: Any, count: int) -> list[tuple[Any, float]]:
        """Inputs cut for accumulation, each with its share of the batch."""
        ...

    def loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """Mean training loss of the inputs."""
        ...

    def evaluate(self, model: nn.Module, inputs: Any) -> Sums: ...

    def metrics(self, sums: Sums) -> dict[str, float]:
        """From sums over the whole validation split to the figures people read."""
        ...
