"""What each task opens: its dataset, what a batch of it is, who makes the batches. The one place that names tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from flatout import plugins
from flatout.config.schema import Config, DataConfig
from flatout.data.batch import AnyDataset, BatchSource
from flatout.data.loading.loader import choose_workers, open_loader
from flatout.data.loading.pinned_memory import memory_for
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.views import resolve_view
from flatout.data.source.dataset import open_dataset
from flatout.data.source.layouts import KNOWN_LAYOUTS
from flatout.data.text.batches import TextBatchPlan, TextSource
from flatout.data.text.parallel_text import VOCABULARY_FILE, open_parallel_text
from flatout.errors import ConfigError, DataError
from flatout.tasks.classification.emulated import EmulatedClassification
from flatout.tasks.classification.task import TOP5_CLASSES, Classification
from flatout.tasks.protocol import Task
from flatout.tasks.translation.task import Translation
from flatout.timeline import Recorder
from flatout.units import format_bytes

AnyPlan = BatchPlan | TextBatchPlan


@dataclass(frozen=True)
class TaskSetup:
    """A task ready to train, whatever it is."""

    dataset: AnyDataset
    task: Task
    recipe: AnyPlan
    val_recipe: AnyPlan | None
    what: str  # the training samples in a few words
    global_batch: int  # over all ranks: samples, or tokens where batches are cut by tokens
    chance_loss_of: int  # an untrained model's loss is the logarithm of this
    batch_key: str  # what under `data` says how large a batch is
    files: Mapping[str, str] = field(default_factory=dict)  # name -> text: what a run needs besides its weights
    notes: tuple[str, ...] = ()


class TaskOpener(Protocol):
    """A task of the user's own (`task: ./file.py:open_mine`, or an entry point of flatout.tasks) is opened by this."""

    def __call__(self, config: Config, run_folder: Path | None, rank: int, world_size: int) -> TaskSetup: ...


def open_task(config: Config, run_folder: Path | None = None, rank: int = 0, world_size: int = 1) -> TaskSetup:
    """`run_folder` is that of a run which may go on: its own vocabulary is then used."""
    if config.task == "classification":
        return _images(config, rank, world_size)
    if config.task != "translation":
        return _users(config, run_folder, rank, world_size)
    return _text(config, run_folder, rank, world_size)


def _users(config: Config, run_folder: Path | None, rank: int, world_size: int) -> TaskSetup:
    opener = cast(TaskOpener, plugins.load("tasks", config.task, "task"))
    with plugins.blamed(f"task is {config.task!r}"):
        opened = opener(config, run_folder, rank, world_size)
    if not isinstance(opened, TaskSetup):
        raise ConfigError(f"task is {config.task!r}, which returned a {type(opened).__name__}, not a TaskSetup")
    if config.checkpoint.metric not in opened.task.better:
        known = ", ".join(opened.task.better)
        raise ConfigError(f"checkpoint.metric is {config.checkpoint.metric}, but {config.task} has {known}")
    return opened


def workers_for_task(config: DataConfig, device_kind: str, recipe: AnyPlan) -> int:
    if isinstance(recipe, BatchPlan):
        return choose_workers(config.workers, device_kind, recipe)
    return 1 if config.workers == "auto" else config.workers  # padding takes no time; one thread hides even that


def open_source(
    recipe: AnyPlan,
    config: DataConfig,
    workers: int,
    look_ahead: bool = True,
    device_kind: str = "cpu",
    recorder: Recorder | None = None,
    memory_taken: int = 0,
    epochs: int | None = None,
) -> BatchSource:
    if isinstance(recipe, BatchPlan):
        return open_loader(recipe, config, workers, look_ahead, device_kind, recorder, memory_taken, epochs)
    prefetch = 0 if workers == 0 else 2 if config.prefetch == "auto" else config.prefetch
    memory = memory_for(device_kind)
    return TextSource(recipe, prefetch, config.batch_deadline_seconds, config.max_quarantine_share, recorder, memory)


def _images(config: Config, rank: int, world_size: int) -> TaskSetup:
    dataset = open_dataset(config.data)
    view, eval_view = (resolve_view(name, config.views) for name in (config.data.view, config.data.eval_view))
    samples, classes = len(dataset.train), len(dataset.classes)
    if classes < 2:
        raise DataError(
            f"{config.data.path} has 1 class, {dataset.classes[0]!r}; a classifier needs at least 2: {KNOWN_LAYOUTS}"
        )
    if config.checkpoint.metric == "top5" and classes < TOP5_CLASSES:
        raise DataError(f"checkpoint.metric is top5, which says nothing of {classes} classes; use top1 or val_loss")
    key = "batch_size" if config.data.global_batch is None else "global_batch"
    global_batch = config.data.global_batch or config.data.batch_size * world_size
    if global_batch > samples:
        on_ranks = f" on each of {world_size} ranks" if key == "batch_size" and world_size > 1 else ""
        raise DataError(
            f"data.{key} is {getattr(config.data, key)}{on_ranks} but the training split has {samples} samples; "
            f"set data.{key} to at most {samples // world_size if on_ranks else samples}"
        )
    recipe = BatchPlan(dataset.train, view, config.train.seed, global_batch, rank=rank, world_size=world_size)
    val_size = config.validate_.batch_size or config.data.global_batch or config.data.batch_size
    val_recipe = None
    if dataset.val is not None:
        val_recipe = BatchPlan(
            dataset.val, eval_view, 0, val_size, shuffle=False, rank=rank, world_size=world_size, whole_batches=True
        )
    kind = EmulatedClassification if config.device == "emulated" else Classification
    task = kind(config, classes, view, eval_view)
    what = f"{samples:,} samples of {classes} classes"
    return TaskSetup(dataset, task, recipe, val_recipe, what, global_batch, classes, key)


def _text(config: Config, run_folder: Path | None, rank: int, world_size: int) -> TaskSetup:
    text, budget = open_parallel_text(config.data, run_folder), config.data.batch_tokens
    recipe = TextBatchPlan(text.train, config.train.seed, budget * world_size, rank=rank, world_size=world_size)
    val_recipe = TextBatchPlan(text.val, 0, budget, False, rank, world_size, whole_batches=True)
    for split in (text.train, text.val):
        if not len(split.usable):
            raise DataError(f"no line of {split.files} can be used; the first: {split.failures[0].reason}")
    task = Translation(config, text.vocabulary)
    what = (
        f"{len(text.train):,} sentence pairs ({format_bytes(text.train.total_bytes)}) "
        f"from {' to '.join(text.languages)}, {len(text.vocabulary):,} word pieces"
    )
    files = {VOCABULARY_FILE: text.vocabulary.text}
    tokens, pieces = budget * world_size, len(text.vocabulary)
    return TaskSetup(text, task, recipe, val_recipe, what, tokens, pieces, "batch_tokens", files, task.notes)
