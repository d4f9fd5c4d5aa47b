"""From a recipe to what one step of its model does: traced on fake tensors, kept for the next time.

The only place that brings recipe, tasks and tracer together; torch is loaded when a trace is missing, not before.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout import plugins
from flatout.config.schema import Config
from flatout.errors import BadFile, ConfigError
from flatout.machine.budgets import cache_folder
from flatout.planning.work import FORMAT, Line, TracedWork
from flatout.runs.directory import write_text
from flatout.untrusted import MAX_RECORD_BYTES, read_text

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCHES = (32, 256)
"""Two batches to draw lines through, far apart because the peak moves from the end of backward to that of forward as
activations outweigh gradients. Tensors without memory cost nothing."""
PAIR_TOKENS = 27
"""Of one side of a sentence pair, on average (WMT and Multi30k have 12 to 30): what a sample of text is traced with."""


@dataclass(frozen=True)
class Shape:
    """What of a recipe decides the work of a step."""

    config: Config
    classes: int
    pixels: int

    def key(self, narrow: bool, checkpointing: bool) -> dict[str, Any]:
        model, train = self.config.model, self.config.train
        return {
            "format": FORMAT,
            "torch": importlib.metadata.version("torch"),
            "task": self.config.task,
            "flatout": importlib.metadata.version("flatout"),
            "model": model.model_dump(mode="json"),
            "optimizer": train.optimizer,
            "momentum": train.momentum > 0,
            "channels_last": train.channels_last,
            "classes": self.classes,
            "pixels": self.pixels,
            "narrow": narrow,
            "checkpointing": checkpointing,
            "vocabulary": self.config.data.vocabulary.size,
            "packages": _package_versions(model.name),
        }


def traced_work(shape: Shape, narrow: bool, checkpointing: bool) -> TracedWork:
    """The step at 16 bits (`narrow`) or 32. A model that cannot be traced is a ConfigError of one line."""
    path = kept_file("traces", shape.key(narrow, checkpointing))
    with suppress(KeyError):  # absent, damaged or of another format: traced again
        return TracedWork.from_dict(read_kept(path))
    work = _trace(shape, narrow, checkpointing)
    keep(path, work.to_dict())
    return work


def kept_file(folder: str, key: Mapping[str, Any]) -> Path:
    """Where `keep` puts what this key stands for."""
    return cache_folder() / folder / f"{_digest(json.dumps(key, sort_keys=True))[:32]}.json"


def keep(path: Path, values: Mapping[str, Any]) -> None:
    """For the next plan, which only takes longer where it cannot be written."""
    text = json.dumps(values, allow_nan=False)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, f"{_digest(text)}\n{text}")


def read_kept(path: Path) -> dict[str, Any]:
    """What `keep` wrote, to the letter: no keys where it is not there or damaged, and figures would be wrong."""
    with suppress(OSError, BadFile):
        digest, _, text = read_text(path, MAX_RECORD_BYTES).partition("\n")
        if digest == _digest(text):
            return dict(json.loads(text))
    return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _package_versions(model: str) -> dict[str, str]:
    """Models of other packages change with them."""
    found = {}
    if plugins.is_user_code("models", model) and not model.startswith(("timm:", "torchvision:")):
        return {"source": plugins.source_digest("models", model, "model.name")}
    for name in (model.partition(":")[0],) if ":" in model else ():
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _trace(shape: Shape, narrow: bool, checkpointing: bool) -> TracedWork:
    from flatout.engine.optimizers import optimizer_for
    from flatout.planning.tracing import CannotTrace, Step, trace

    config = shape.config.model_copy(
        update={"train": shape.config.train.model_copy(update={"checkpointing": checkpointing, "compile": False})}
    )
    build, loss, unit = _text_job(config) if config.spec.batch_unit == "tokens" else _image_job(config, shape)
    step = Step(
        build,
        loss,
        lambda model: optimizer_for(model, config.train),
        "fp16" if narrow else "fp32",
        config.train.channels_last and config.spec.has_images,
        unit=unit,
    )
    try:
        work = trace(step, _BATCHES)
    except CannotTrace as error:
        raise ConfigError(
            f"model {config.model.name!r} cannot be traced: {error}; nothing is planned for it: "
            "train it for a few steps on a card and use flatout predict"
        ) from None
    for kept in (config.train.ema, config.train.lookahead):
        work = work if kept is None else _with_average(work)
    return work


def _image_job(config: Config, shape: Shape) -> Any:
    import torch

    from flatout.data.pixels.views import resolve_view
    from flatout.tasks.classification.task import Classification, Inputs

    view = resolve_view(config.data.view, config.views)
    task = Classification(config, shape.classes, view, view)

    def loss(model: nn.Module, batch: int) -> Tensor:
        images = torch.zeros(batch, 3, shape.pixels, shape.pixels, dtype=torch.uint8)
        return task.loss(model, Inputs(images, torch.zeros(batch, dtype=torch.long)))

    return lambda: _frozen(task.build_model(), config), loss, "images"


def _frozen(model: nn.Module, config: Config) -> nn.Module:
    from flatout.engine.parameters import freeze

    freeze(model, config.model.freeze)
    return model


def _text_job(config: Config) -> Any:
    import torch
    from torch.nn import functional as F

    from flatout.tasks.translation.dropout import Dropout
    from flatout.tasks.translation.transformer import build_transformer

    model, words = config.model, config.data.vocabulary.size

    def build() -> nn.Module:
        net = build_transformer(
            model.name, words, model.width, model.dropout, model.pre_norm, config.train.checkpointing
        )
        for each in net.modules():
            if isinstance(each, Dropout):
                each.own_draws = False  # as on the card that is planned for
        return net

    def loss(net: nn.Module, batch: int) -> Tensor:
        source = torch.zeros(batch, PAIR_TOKENS, dtype=torch.long)
        target = torch.zeros(batch, PAIR_TOKENS + 1, dtype=torch.long)
        logits = net(source, None, target[:, :-1])
        smoothing = config.train.label_smoothing
        return F.cross_entropy(logits.flatten(0, 1).float(), target[:, 1:].flatten(), label_smoothing=smoothing)

    return build, loss, "sentence pairs"


def _with_average(work: TracedWork) -> TracedWork:
    """Averaged weights are one more copy of them."""
    from dataclasses import replace

    weights = work.memory["weights"]
    return replace(work, memory={**work.memory, "weights": Line(weights.fixed + 4.0 * work.parameters, 0.0)})
