"""Loaders to compare: what an epoch must be, by the pure function itself, and what a loader gave."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from small_datasets import TORN, split_of

from flatout.config.schema import DataConfig
from flatout.data.batch import Batch
from flatout.data.loading.loader import Loader, as_batch, open_loader
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.views import SHIPPED

SAMPLES, BATCH = 26, 4
VIEW = replace(SHIPPED["train-224"], size=12, colour_jitter=(0.4, 0.4, 0.4), mixup=0.2, cutmix=1.0)
BAD = {3: TORN, 20: b"text"}


def make_recipe(folder: Path) -> BatchPlan:
    return BatchPlan(split_of(folder, SAMPLES, BAD), VIEW, seed=7, batch_size=BATCH)


def loader_of(recipe: BatchPlan, kind: str, workers: int, look_ahead: bool = True, **options: object) -> Loader:
    values = {
        "cache": "off",
        "stage": "off",
        "max_quarantine_share": 0.5,
        "worker_kind": kind,
        "batch_deadline_seconds": 60,
    }
    return open_loader(recipe, DataConfig(**{**values, **options}), workers, look_ahead)


def fingerprint(batch: Batch) -> tuple[object, ...]:
    assert batch.mix is not None
    mix = (batch.mix.partner.tobytes(), batch.mix.keep.tobytes(), batch.mix.box.tobytes())
    images = batch.images.numpy().tobytes()
    return batch.epoch, batch.index, images, batch.labels.tolist(), batch.sample_ids.tolist(), mix, batch.failures


def expected(recipe: BatchPlan, epoch: int, start: int = 0) -> list[tuple[object, ...]]:
    """By the pure function itself, with no pool at all."""
    keys = [(epoch, index) for index in range(start, recipe.batches_per_epoch)]
    return [fingerprint(as_batch(prepare(recipe, *key, np.zeros(recipe.shape(epoch), np.uint8)))) for key in keys]


def kept(batches: Iterator[Batch]) -> list[tuple[object, ...]]:
    """All batches are held until the last has come: a buffer that is used again too early would show."""
    return [fingerprint(batch) for batch in list(batches)]
