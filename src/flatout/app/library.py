"""What a user imports from flatout: everything a command does is a function first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.app.train_run import train_run
from flatout.config.loading import load_config
from flatout.data.dataset import open_dataset
from flatout.data.loader import Loader, choose_workers, open_loader
from flatout.data.prepare import Recipe
from flatout.data.views import View, resolve_view
from flatout.errors import DataError
from flatout.runs import Run


def train(
    config: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, run: str | Path | None = None
) -> Run:
    """Train a recipe (a path or a mapping) and return the run; the same call again resumes."""
    return train_run(config, overrides, run)


def open_batches(
    path: str | Path,
    view: str | View = "train-224",
    batch_size: int = 256,
    seed: int = 0,
    workers: int | str = "auto",
    split: str = "train",
    shuffle: bool = True,
    **data: Any,
) -> Loader:
    """Batches of a dataset for your own loop; `data` takes any other key of a recipe's data section."""
    values = {"path": str(path), "batch_size": batch_size, "workers": workers, **data}
    config = load_config({"data": values}).config.data
    dataset = open_dataset(config)
    chosen = dataset.train if split == "train" else dataset.val
    if chosen is None or split not in ("train", "val"):
        raise DataError(f"split {split!r} is not there; use train or val")
    if batch_size > len(chosen):
        raise DataError(f"batch_size is {batch_size} but the split has {len(chosen)} samples; ask for at most that")
    recipe = Recipe(chosen, view if isinstance(view, View) else resolve_view(view), seed, batch_size, shuffle)
    return open_loader(recipe, config, choose_workers(workers, "cuda", recipe))
