"""A first recipe for somebody's data on this machine: look at both, decide, write it down with the reasons."""

import io
import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from PIL import Image

from flatout.commands.output_files import require_place
from flatout.commands.traced_model import Shape, traced_work
from flatout.config.loading import load_config
from flatout.config.schema import DataConfig
from flatout.data.pixels import normalize
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.name_split import chosen_by_name
from flatout.engine.devices import Device, choose_device
from flatout.errors import ConfigError, DataError, StorageError
from flatout.machine.budgets import memory_budget_bytes, usable_cores
from flatout.planning.memory import MemorySetup, largest_batch
from flatout.runs.directory import write_text
from flatout.trained.other_data import whole_or_validation
from flatout.units import format_bytes

_LOOKED_AT = 60  # pictures whose size is read
_MOST_BATCH, _LEAST_STEPS = 256, 10  # of an epoch
_SHARE = 0.1  # held out, where there is no validation split
_STEPS = {"cuda": 20_000, "mps": 6_000, "cpu": 3_000}  # worth waiting for, of a first training


@dataclass(frozen=True)
class InitFacts:
    """What was seen."""

    data: str
    name: str
    classes: int
    train: int
    val: int | None  # None where some will be held out
    split_by_name: bool  # whether data.split would leave every class some samples to validate on
    side: int  # of the shorter side, the median in pixels
    device: Device
    memory_bytes: int


@dataclass(frozen=True)
class PictureSize:
    """Which views suit pictures of a size, and the stem that suits the views."""

    view: str
    eval_view: str
    side: int
    stem: str
    own: str = ""  # lines of `views:`, where no shipped one fits


def init_recipe(data: str, out: Path | None = None) -> dict[str, Any]:
    """Write the recipe; what was found, its path and the next commands."""
    name = _name(data)
    target = out or Path(f"{name}.yaml")
    if target.exists():
        raise ConfigError(f"{target} is there already; give another one with --out FILE")
    require_place(target)
    facts = look(data, name)
    text = recipe_text(facts)
    load_config(yaml.safe_load(text))  # what is written here must load
    try:
        write_text(target, text)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}; give another place with --out FILE") from None
    run = f"runs/{name}"
    return {
        "recipe": str(target),
        "name": name,
        "found": _found(facts),
        "next": [
            f"flatout doctor {target}",
            f"flatout train {target}",
            f"flatout evaluate {run}",
            f"flatout export {run} --to onnx",
        ],
    }


def _name(data: str) -> str:
    last = data.rstrip("/").rpartition("/")[2]
    last = re.sub(r"\.(tar|zip|csv|tsv|jsonl|parquet)$", "", last) or Path.cwd().name
    return re.sub(r"[^\w.+-]+", "-", last).strip("-.") or "mine"


def look(data: str, name: str) -> InitFacts:
    """At the dataset as training opens it, a few of its pictures, and the machine."""
    dataset = open_dataset(DataConfig(path=data))
    if len(dataset.classes) < 2:
        raise DataError(f"{data} has 1 class, {dataset.classes[0]!r}; a classifier needs at least 2")
    whole = whole_or_validation(dataset)
    has_val = whole is dataset.val
    train, val = (len(dataset.train), len(whole)) if has_val else (len(whole), None)
    device = choose_device("auto")
    chosen = chosen_by_name([dataset.classes[label] for label in whole.labels.tolist()], whole.names, _SHARE)
    by_name = len(np.unique(whole.labels[chosen])) == len(dataset.classes)
    side, memory = _side(dataset), _memory_bytes(device)
    return InitFacts(data, name, len(dataset.classes), train, val, by_name, side, device, memory)


def _side(dataset: Dataset) -> int:
    """The median of the shorter side over samples from all over the split; headers are enough."""
    ids = np.linspace(0, len(dataset.train) - 1, min(_LOOKED_AT, len(dataset.train))).astype(np.int64)
    shapes, sides = dataset.train.shapes(ids), []
    for slot, data in enumerate(dataset.train.read(ids)):
        if shapes is not None and shapes[slot][0]:
            sides.append(min(shapes[slot].tolist()))
        elif not isinstance(data, StorageError):
            try:
                with Image.open(io.BytesIO(data)) as image:
                    sides.append(min(image.size))
            except (OSError, ValueError, Image.DecompressionBombError):
                continue
    if not sides:
        raise DataError(
            f"none of {len(ids)} samples of {dataset.url} can be read as a picture; flatout data audit says why"
        )
    return int(statistics.median(sides))


def _memory_bytes(device: Device) -> int:
    if device.kind == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device.torch)[0])
    return memory_budget_bytes()


def choose_size(side: int, device_kind: str) -> PictureSize:
    """Small pictures as they are; large ones cropped to what the device can afford."""
    if side <= 48:
        own = "views:\n  train-32: {base: train-64, size: 32}\n  eval-32: {base: eval-64, size: 32}\n"
        return PictureSize("train-32", "eval-32", 32, "small", own)
    if side <= 112:
        return PictureSize("train-64", "eval-64", 64, "small")
    if side < 224 or device_kind == "cpu":
        own = "views:\n  train-128: {base: train-224, size: 128}\n  eval-128: {base: eval-224, size: 128}\n"
        return PictureSize("train-128", "eval-128", 128, "standard", own)
    return PictureSize("train-224", "eval-224", 224, "standard")


def choose_batch_size(facts: InitFacts, fits: int) -> int:
    """A power of two that fits, with at least ten steps in an epoch where there are samples for that."""
    most = min(_MOST_BATCH, fits, max(2, facts.train // _LEAST_STEPS))
    return int(2 ** int(np.log2(max(1, most))))


def choose_epochs(facts: InitFacts, batch: int) -> int:
    steps = max(1, facts.train // batch)
    return int(min(90, max(5, round(_STEPS.get(facts.device.kind, 3_000) / steps))))


def recipe_text(facts: InitFacts) -> str:
    """The recipe, with a reason beside every value that was chosen."""
    size, kind = choose_size(facts.side, facts.device.kind), facts.device.kind
    model = "resnet50" if kind == "cuda" and size.side == 224 else "resnet18"
    width = 0.5 if kind == "cpu" and size.stem == "small" else 1.0
    stem = {"name": model, "stem": size.stem, "width": width}
    fits = _fitting(facts, size, stem)
    batch = choose_batch_size(facts, fits)
    rate = round((0.8 if size.stem == "small" else 0.5) * batch / 256, 4)
    steps, epochs = max(1, facts.train // batch), choose_epochs(facts, batch)
    narrower = "half the channels: no GPU here" if width < 1 else "as published"
    return f"""# {facts.train:,} samples of {facts.classes} classes for {facts.device.name}; written by flatout init.
name: {facts.name}
data:
  path: {json.dumps(facts.data, ensure_ascii=False)}
  view: {size.view}  # pictures are about {facts.side} pixels on their shorter side
  eval_view: {size.eval_view}
  batch_size: {batch}  # {format_bytes(facts.memory_bytes)} would hold {fits:,}; an epoch has {steps:,} steps
{_split_lines(facts)}{size.own}model:
  name: {model}
  stem: {size.stem}  # {"for pictures of 32 to 64 pixels" if size.stem == "small" else "for larger pictures"}
  width: {width}  # {narrower}
train:
  epochs: {epochs}  # about {epochs * steps:,} steps in all
  lr: {rate}  # for this batch; flatout lr-find looks for a better one
checkpoint: {{metric: top1, keep_top: 1}}
"""


def _split_lines(facts: InitFacts) -> str:
    if facts.val is not None:
        return ""
    if facts.split_by_name:
        return f"  split: {_SHARE}  # there is no validation split: a tenth is held out, by the names of the files\n"
    return f"  holdout: {_SHARE}  # there is no validation split: a tenth of every class, one sample at least\n"


def _fitting(facts: InitFacts, size: PictureSize, model: dict[str, Any]) -> int:
    """The largest batch for the memory of the device, by the trace that flatout fit uses."""
    views = yaml.safe_load(size.own).get("views", {}) if size.own else {}
    data = {"path": facts.data, "view": size.view, "eval_view": size.eval_view}
    config = load_config({"data": data, "views": views, "model": model}).config
    try:
        work = traced_work(Shape(config, facts.classes, size.side), facts.device.kind == "cuda", False)
    finally:
        normalize._constants.cache_clear()  # else a training in the same process would meet fake tensors
    return max(1, largest_batch(work, MemorySetup(1, 1), facts.memory_bytes))


def _found(facts: InitFacts) -> list[str]:
    val = "no validation split: a tenth is held out" if facts.val is None else f"{facts.val:,} to validate"
    return [
        f"data: {facts.train:,} samples of {facts.classes} classes, {val}; about {facts.side} pixels",
        f"machine: {facts.device.name}, {usable_cores()} cores, {format_bytes(psutil.virtual_memory().total)} memory",
    ]
