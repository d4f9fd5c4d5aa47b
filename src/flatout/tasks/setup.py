"""What each task opens: its dataset, what a batch of it is, who makes the batches. The one place that names tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
from flatout.decisions import Choice
from flatout.decisions.batches import choose_batch
from flatout.decisions.loading import choose_text_workers, decide_text
from flatout.errors import DataError
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


def open_task(config: Config, run_folder: Path | None = None, rank: int = 0, world_size: int = 1) -> TaskSetup:
    """`run_folder` is that of a run which may go on: its own vocabulary is then used."""
    if config.task == "classification":
        return _images(config, rank, world_size)
    return _text(config, run_folder, rank, world_size)


def workers_for_task(config: DataConfig, device_kind: str, recipe: AnyPlan) -> Choice[int]:
    if isinstance(recipe, BatchPlan):
        return choose_workers(config.workers, device_kind, recipe)
    return choose_text_workers(config.workers)


def open_source(
    recipe: AnyPlan,
    config: DataConfig,
    workers: int | Choice[int],
    look_ahead: bool = True,
    device_kind: str = "cpu",
    recorder: Recorder | None = None,
    memory_taken: int = 0,
    epochs: int | None = None,
) -> BatchSource:
    if isinstance(recipe, BatchPlan):
        return open_loader(recipe, config, workers, look_ahead, device_kind, recorder, memory_taken, epochs)
    decided, memory = decide_text(config, workers), memory_for(device_kind)
    source = TextSource(
        recipe,
        decided.prefetch.value,
        config.batch_deadline_seconds,
        config.max_quarantine_share,
        recorder,
        memory,
    )
    source.decided = decided
    return source


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
    batch = choose_batch(config, world_size)
    key, global_batch = batch.key, batch.value
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
    text, batch = open_parallel_text(config.data, run_folder), choose_batch(config, world_size)
    recipe = TextBatchPlan(text.train, config.train.seed, batch.value, rank=rank, world_size=world_size)
    val_recipe = TextBatchPlan(text.val, 0, config.data.batch_tokens, False, rank, world_size, whole_batches=True)
    for split in (text.train, text.val):
        if not len(split.usable):
            raise DataError(f"no line of {split.files} can be used; the first: {split.failures[0].reason}")
    task = Translation(config, text.vocabulary)
    what = (
        f"{len(text.train):,} sentence pairs ({format_bytes(text.train.total_bytes)}) "
        f"from {' to '.join(text.languages)}, {len(text.vocabulary):,} word pieces"
    )
    files = {VOCABULARY_FILE: text.vocabulary.text}
    pieces = len(text.vocabulary)
    return TaskSetup(text, task, recipe, val_recipe, what, batch.value, pieces, batch.key, files, task.notes)
