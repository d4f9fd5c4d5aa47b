"""Opens translation: parallel text with its vocabulary, and batches cut by tokens."""

from pathlib import Path

from flatout.config.schema import Config, DataConfig
from flatout.data.batch import BatchSource
from flatout.data.loading.pinned_memory import memory_for
from flatout.data.text.batches import TextBatchPlan, TextSource
from flatout.data.text.parallel_text import VOCABULARY_FILE, open_parallel_text
from flatout.decisions import Choice
from flatout.decisions.batches import choose_batch
from flatout.decisions.loading import choose_text_workers, decide_text
from flatout.errors import DataError
from flatout.tasks.setup import TaskSetup
from flatout.tasks.translation.task import Translation
from flatout.timeline import Recorder
from flatout.units import format_bytes


def open_task(config: Config, run_folder: Path | None, rank: int, world_size: int) -> TaskSetup:
    """With the vocabulary of `run_folder`, where a run there goes on."""
    text, budget = open_parallel_text(config.data, run_folder), config.data.batch_tokens
    tokens, pieces = choose_batch(config, world_size).value, len(text.vocabulary)
    plan = TextBatchPlan(text.train, config.train.seed, tokens, rank=rank, world_size=world_size)
    val_plan = TextBatchPlan(text.val, 0, budget, False, rank, world_size, whole_batches=True)
    for split in (text.train, text.val):
        if not len(split.usable):
            raise DataError(f"no line of {split.files} can be used; the first: {split.failures[0].reason}")
    task = Translation(config, text.vocabulary)
    what = (
        f"{len(text.train):,} sentence pairs ({format_bytes(text.train.total_bytes)}) "
        f"from {' to '.join(text.languages)}, {pieces:,} word pieces"
    )
    files = {VOCABULARY_FILE: text.vocabulary.text}
    return TaskSetup(text, task, plan, val_plan, what, tokens, pieces, _workers, _open_source, files, task.notes)


def _workers(config: DataConfig, device_kind: str, plan: TextBatchPlan) -> Choice[int]:
    return choose_text_workers(config.workers)


def _open_source(
    plan: TextBatchPlan,
    config: DataConfig,
    workers: int | Choice[int],
    look_ahead: bool = True,
    device_kind: str = "cpu",
    recorder: Recorder | None = None,
    memory_taken: int = 0,
    epochs: int | None = None,
) -> BatchSource:
    decided, memory = decide_text(config, workers), memory_for(device_kind)
    source = TextSource(
        plan, decided.prefetch.value, config.batch_deadline_seconds, config.max_quarantine_share, recorder, memory
    )
    source.decided = decided
    return source
