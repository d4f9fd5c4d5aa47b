"""Pack a dataset, stage a remote one, unpack a pack: with progress, rate and what is left."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flatout.config.schema import CostConfig, DataConfig
from flatout.cost import Usage, load_catalogue, usage_cost
from flatout.data.loading.staging import is_remote
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.pack_writer import LABELS, unpack, write_pack
from flatout.data.source.pack_writer import PackOptions as PackOptions
from flatout.errors import ConfigError, DataError, NoSpace
from flatout.machine.budgets import free_bytes
from flatout.training.display import Display
from flatout.units import format_bytes, format_seconds, format_usd

_MONTH_SECONDS = 30 * 86400.0


def pack_dataset(
    source: str,
    target: Path,
    options: PackOptions,
    quiet: bool,
    layout: str = "detect",
    label_column: str | None = None,
) -> dict[str, Any]:
    """Write a pack of every split; the same command again goes on after an interruption."""
    dataset = open_dataset(data_of(source, layout, label_column))
    return _pack(dataset, target, options, "packing", quiet)


def data_of(source: str, layout: str, label_column: str | None) -> DataConfig:
    """Of a command's options; a layout that is none is refused in one line."""
    try:
        return DataConfig(path=source, layout=layout, label_column=label_column)
    except ValidationError as error:
        raise ConfigError(f"--layout is {layout!r}: {error.errors(include_url=False)[0]['msg']}") from None


def stage_dataset(
    source: str, target: Path, classes: int | None, samples_per_class: int | None, quiet: bool
) -> dict[str, Any]:
    """Copy a dataset to local disk as a pack of original bytes, many requests at a time, each object once."""
    dataset = open_dataset(DataConfig(path=source, classes=classes, samples_per_class=samples_per_class))
    result = _pack(dataset, target, PackOptions(), "staging", quiet)
    objects = len(dataset.train) + (len(dataset.val) if dataset.val else 0)
    usage = Usage(gets=objects, stored_byte_seconds=result["bytes"] * _MONTH_SECONDS)
    cost = usage_cost(usage, CostConfig(), load_catalogue(None)) if is_remote(dataset.train) else None
    return result | {
        "requests": objects,
        "requests_and_month_usd": None if cost is None else cost.lines_usd,
        "advice": _advice(result, objects, cost.lines_usd if cost else None),
    }


def unpack_dataset(source: str, target: Path, quiet: bool) -> dict[str, Any]:
    """Write the samples of a pack back as files."""
    dataset = open_dataset(DataConfig(path=source))
    if dataset.train.shapes(dataset.train.rows[:1]) is not None:
        raise DataError(f"{source} holds decoded pixels, not files; unpack a pack of mode original or resized")
    done = followed(unpack(dataset, target), dataset, "unpacking", quiet)
    labels = target / LABELS
    return {"folder": str(target), "labels": str(labels) if labels.exists() else None, **done}


def _pack(dataset: Dataset, target: Path, options: PackOptions, what: str, quiet: bool) -> dict[str, Any]:
    room = free_bytes(target)
    if options.mode == "original" and room < dataset.total_bytes:
        raise NoSpace(
            f"{what} needs {format_bytes(dataset.total_bytes)} but {target} has {format_bytes(room)} free; "
            "free some space, choose another folder, or take fewer classes"
        )
    done = followed(write_pack(dataset, target, options), dataset, what, quiet)
    size = sum(path.stat().st_size for path in target.iterdir())
    return {"pack": str(target), "mode": options.mode, "fingerprint": dataset.fingerprint, "bytes": size, **done}


def followed(work: Iterator[tuple[int, int]], dataset: Dataset, what: str, quiet: bool) -> dict[str, Any]:
    """Run with a progress bar that shows the rate."""
    started, done, total = time.monotonic(), 0, 0
    mean_bytes = dataset.total_bytes / max(1, len(dataset.train) + (len(dataset.val) if dataset.val else 0))
    with Display(quiet) as display:
        for done, total in work:
            seconds = max(1e-6, time.monotonic() - started)
            rate = f"{done / seconds:,.0f} samples/s  {format_bytes(done * mean_bytes / seconds)}/s"
            display.begin_once(what, done, total)
            display.advance(what, done, total, rate)
    return {"samples": total, "seconds": time.monotonic() - started}


def _advice(result: dict[str, Any], objects: int, usd: float | None) -> str:
    """What the copy took, and from how many epochs on it pays."""
    seconds = result["seconds"]
    took = f"copied {objects:,} objects, {format_bytes(result['bytes'])} in {format_seconds(seconds)}"
    paid = "" if usd is None else f", {format_usd(usd)} for the requests and a month of storage"
    pays = f"A copy ahead of time pays after {format_seconds(seconds)} / (remote - local epoch) epochs"
    return f"{took}{paid}. {pays}; data.stage: auto copies while the first epoch trains and needs no such wait"
