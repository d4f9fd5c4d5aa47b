"""What a user imports from flatout: everything a command does is a function first."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from flatout.config.loading import load_config
from flatout.config.schema import DataConfig
from flatout.data.loading.loader import Loader, choose_workers, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.views import View, resolve_view
from flatout.data.source.dataset import open_dataset
from flatout.decisions import Choice
from flatout.decisions.batches import choose_rank, choose_sample_batch
from flatout.decisions.caching import is_off
from flatout.decisions.loading import choose_sharing
from flatout.engine.parallel.place import find_place
from flatout.errors import DataError
from flatout.machine.budgets import share_machine
from flatout.runs import Run


def train(
    config: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, run: str | Path | None = None
) -> Run:
    """Train a recipe (a path or a mapping) and return the run; the same call again resumes."""
    from flatout.commands.notebook import watched
    from flatout.commands.train import run_folder, train_run  # who only reads batches needs none of it

    with watched(run_folder(config, overrides, run)):
        return train_run(config, overrides, run)


def open_batches(
    path: str | Path,
    view: str | View = "train-224",
    batch_size: int = 256,
    seed: int = 0,
    workers: int | str = "auto",
    split: str = "train",
    shuffle: bool = True,
    epochs: int | None = None,
    rank: int | Literal["auto"] = "auto",
    world_size: int | Literal["auto"] = "auto",
    **data: Any,
) -> Loader:
    """Batches of a dataset for your own loop; `data` takes any other key of a recipe's data section.

    `epochs`, how many you will ask for, lets `cache: auto` decide whether keeping decoded samples pays; any number may
    be asked for. Each of several ranks gets its own slice of every global batch: `auto` asks torch's process group, or
    torchrun's environment. `batch_size` is for one rank; `global_batch` instead of it gives the same batches on any
    number of ranks. `world_size=1` gives every rank all samples.
    """
    values = {"path": str(path), "batch_size": batch_size, "workers": workers, **data}
    config = load_config({"data": values}).config.data
    own_rank, ranks = _place_among_ranks(rank, world_size)
    dataset = open_dataset(config)
    chosen = dataset.train if split == "train" else dataset.val
    if chosen is None or split not in ("train", "val"):
        raise DataError(f"split {split!r} is not there; use train or val")
    plan = BatchPlan(
        chosen,
        view if isinstance(view, View) else resolve_view(view),
        seed,
        _checked_global_batch(config, ranks, len(chosen)),
        shuffle,
        rank=own_rank,
        world_size=ranks,
        min_batch=_least_batch(ranks) if shuffle else 1,
    )
    loader = _open_source(plan, config, choose_workers(workers, "cuda", plan), split, epochs)
    left_out = len(chosen) - plan.batches_per_epoch * plan.batch_size
    if left_out > 0:
        loader.notes += (f"the last {left_out} sample(s) of an epoch are left out: too few for {ranks} ranks",)
    return loader


def _open_source(plan: BatchPlan, config: DataConfig, workers: Choice[int], split: str, epochs: int | None) -> Loader:
    if is_off(choose_sharing(config.shared).value):
        return open_loader(plan, config, workers, epochs=epochs)
    from flatout.service.client.opening import open_shared_loader

    return open_shared_loader(plan, config, workers, "cuda", split)[0]


def _least_batch(ranks: int) -> int:
    """So many samples that each rank has some: slices keep pairs of neighbours together."""
    return 2 * ranks - 1


def _checked_global_batch(config: DataConfig, ranks: int, samples: int) -> int:
    batch = choose_sample_batch(config, ranks)
    key, value, whole = batch.key, batch.wanted, batch.value
    on = f" on each of {ranks} ranks" if whole > value else ""
    if whole > samples:
        most = samples // (ranks if on else 1)
        raise DataError(f"{key} is {value}{on} but the split has {samples} samples; ask for at most {most}")
    if whole < _least_batch(ranks):
        raise DataError(f"{key} is {value}{on}: not every one of {ranks} ranks would have a sample; ask for more")
    return whole


def _place_among_ranks(rank: int | str, world_size: int | str) -> tuple[int, int]:
    """Rank and number of ranks of this process; ranks on one machine share its cores and memory."""
    import torch.distributed as dist

    place = find_place(os.environ)

    def found() -> tuple[int, int]:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return (0, 1) if place is None else (place.rank, place.world_size)

    own, ranks = choose_rank(rank, world_size, found)
    if place is not None or ranks > 1:
        share_machine(_local_ranks(ranks) if place is None else place.local_world_size)
    return own, ranks


def _local_ranks(world_size: int) -> int:
    """Where no launcher says how many ranks are on this machine: as many as it has GPUs, else all."""
    import torch

    return min(world_size, torch.cuda.device_count() or world_size)
