"""Opens image classification: the dataset with its classes, views and batches."""

from dataclasses import replace
from pathlib import Path

from flatout.config.schema import Config, DataConfig
from flatout.data.loading.loader import choose_workers, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.transforms import try_transform
from flatout.data.pixels.views import resolve_view
from flatout.data.source.class_weights import choose_class_weights
from flatout.data.source.dataset import open_dataset
from flatout.data.source.layouts import KNOWN_LAYOUTS
from flatout.decisions import Choice
from flatout.decisions.batches import choose_batch
from flatout.errors import DataError
from flatout.tasks.classification.emulated import EmulatedClassification
from flatout.tasks.classification.task import TOP5_CLASSES, Classification
from flatout.tasks.setup import TaskSetup


def open_task(config: Config, run_folder: Path | None, rank: int, world_size: int) -> TaskSetup:
    """Refuses a dataset, metric or batch size with which no classifier can be trained."""
    dataset = open_dataset(config.data)
    view, eval_view = (resolve_view(name, config.views) for name in (config.data.view, config.data.eval_view))
    for each in (view, eval_view):
        try_transform(each)
    samples, classes = len(dataset.train), len(dataset.classes)
    if classes < 2:
        raise DataError(
            f"{config.data.path} has 1 class, {dataset.classes[0]!r}; a classifier needs at least 2: {KNOWN_LAYOUTS}"
        )
    if config.checkpoint.metric == "top5" and classes < TOP5_CLASSES:
        raise DataError(f"checkpoint.metric is top5, which says nothing of {classes} classes; use top1 or val_loss")
    global_batch = _global_batch(config, samples, world_size)
    plan = BatchPlan(
        dataset.train,
        view,
        config.train.seed,
        global_batch,
        rank=rank,
        world_size=world_size,
        balance=config.data.balance,
    )
    val_size = config.validate_.batch_size or config.data.global_batch or config.data.batch_size
    val_plan = None
    if dataset.val is not None:
        val_plan = BatchPlan(
            dataset.val, eval_view, 0, val_size, shuffle=False, rank=rank, world_size=world_size, whole_batches=True
        )
    kind = EmulatedClassification if config.device == "emulated" else Classification
    task = kind(config, classes, view, eval_view, choose_class_weights(config.data, dataset))
    what = f"{samples:,} samples of {classes} classes"
    opened = TaskSetup(dataset, task, plan, val_plan, what, global_batch, classes, _workers, open_loader)
    return replace(opened, metrics=task.own_metrics)


def _global_batch(config: Config, samples: int, world_size: int) -> int:
    """Samples of a batch over all ranks; refused where the split has fewer."""
    global_batch = choose_batch(config, world_size).value
    if global_batch > samples:
        on_each = config.data.global_batch is None and world_size > 1
        on_ranks = f" on each of {world_size} ranks" if on_each else ""
        raise DataError(
            f"{config.batch_key} is {config.batch_setting}{on_ranks} but the training split has {samples} samples; "
            f"set {config.batch_key} to at most {samples // world_size if on_each else samples}"
        )
    return global_batch


def _workers(config: DataConfig, device_kind: str, plan: BatchPlan) -> Choice[int]:
    return choose_workers(config.workers, device_kind, plan)
