"""Batches of sentence pairs: the pure function, and the source that stays a few batches ahead of the loop."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flatout.data.batch import Failure, LoadStats, Work
from flatout.data.loading.pinned_memory import PAGEABLE, HostMemory
from flatout.data.loading.pools import Buffers
from flatout.data.text.parallel_text import TextSplit, Tokens
from flatout.data.text.vocabulary import BEGIN, END, PAD
from flatout.decisions import Change
from flatout.decisions.loading import DataDecisions
from flatout.errors import TooManyQuarantined, WorkerFailed
from flatout.sampling import rank_slice
from flatout.sampling.token_batches import TokenCut, batch_of, batch_order, cut_by_tokens, token_order
from flatout.timeline import Recorder


@dataclass
class TextBatch:
    """Padded token ids: the source ends with END, the target begins with BEGIN and ends with END."""

    epoch: int
    index: int
    source: Tensor  # [rows, source tokens]
    mask: Tensor | None  # True where the source has a token; None where it has one everywhere
    target: Tensor
    sample_ids: Tensor
    references: list[str]  # the target's own text, where it is asked for
    work: Work
    whole_ids: Tensor | None = None  # of the global batch, where this is a rank's slice of it
    failures: list[Failure] = field(default_factory=list)  # none: unusable lines are known before the first batch


@dataclass(frozen=True)
class TextBatchPlan:
    """Everything that determines the batches of a job; `batch_tokens` are those of a global batch."""

    split: TextSplit
    seed: int
    batch_tokens: int
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    whole_batches: bool = False  # a rank takes every world_size-th batch, instead of its slice of each

    @cached_property
    def cut(self) -> TokenCut:
        usable = self.split.usable
        return cut_by_tokens(
            self.split.source.lengths[usable] + 1, self.split.target.lengths[usable] + 2, self.batch_tokens
        )

    @property
    def batches_per_epoch(self) -> int:
        count = self.cut.batches
        return len(range(self.rank, count, self.world_size)) if self.whole_batches else count

    def ids(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Sample ids of one batch, as far as they are this rank's."""
        if self.whole_batches:
            return self.whole_ids(epoch, index * self.world_size + self.rank)
        whole = self.whole_ids(epoch, index)
        return whole[rank_slice(len(whole), self.rank, self.world_size)]

    def whole_ids(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Sample ids of one global batch."""
        order, batches = self._orders(epoch)
        return self.split.usable[batch_of(self.cut, order, int(batches[index]))]

    def prepare(self, epoch: int, index: int, buffers: Buffers | None = None) -> TextBatch:
        """In memory of `buffers`, or of its own."""
        started = time.perf_counter()
        ids = self.ids(epoch, index)
        source = padded(self.split.source, ids, False, buffers)
        target = padded(self.split.target, ids, True, buffers)
        room = None if buffers is None else buffers.take(source.shape).view(np.bool_)
        filled = np.not_equal(source, PAD, out=room)
        mask = None if filled.all() else torch.from_numpy(filled)
        references = [self.split.references[i] for i in ids.tolist()] if self.split.references else []
        whole = None
        if self.world_size > 1 and not self.whole_batches:
            whole = torch.from_numpy(self.whole_ids(epoch, index))
        worker = threading.current_thread().name.removeprefix("flatout-")
        work = Work(worker, "collate", started, time.perf_counter() - started)
        return TextBatch(
            epoch,
            index,
            torch.from_numpy(source),
            mask,
            torch.from_numpy(target),
            torch.from_numpy(ids),
            references,
            work,
            whole,
        )

    @cached_property
    def _orders(self) -> Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Orders of pairs and of batches: those of the present epoch, and of another that is looked into."""
        cut, seed = self.cut, self.seed
        if not self.shuffle:
            fixed = np.argsort(cut.cells, kind="stable"), np.arange(cut.batches)
            return lambda epoch: fixed
        return lru_cache(maxsize=2)(lambda epoch: (token_order(cut, seed, epoch), batch_order(cut, seed, epoch)))


def padded(tokens: Tokens, ids: NDArray[np.int64], begin: bool, buffers: Buffers | None = None) -> NDArray[np.int64]:
    """One row for each id, with END after its tokens, as wide as the longest."""
    first = int(begin)
    shape = len(ids), int(tokens.lengths[ids].max(initial=0)) + first + 1
    if buffers is None:
        rows = np.empty(shape, np.int64)
    else:
        rows = buffers.take((8 * shape[0] * shape[1],)).view(np.int64).reshape(shape)
    rows[...] = PAD
    if begin:
        rows[:, 0] = BEGIN
    for row, number in zip(rows, ids.tolist(), strict=True):
        line = tokens[number]
        row[first : first + len(line)] = line
        row[first + len(line)] = END
    return rows


class TextSource:
    """A BatchSource: one thread pads batches ahead of the loop; the text itself is in memory."""

    stage_is_full: str | None = None

    def __init__(
        self,
        recipe: TextBatchPlan,
        prefetch: int,
        deadline_seconds: float,
        max_quarantine_share: float,
        recorder: Recorder | None = None,
        memory: HostMemory = PAGEABLE,
    ) -> None:
        self.notes: tuple[str, ...] = ()
        self.decided: DataDecisions | None = None
        self.changes: list[Change] = []  # none: one thread stays one thread
        self.recipe = recipe
        self.samples = len(recipe.split)
        self.batches_per_epoch = recipe.batches_per_epoch
        self.quarantine: dict[int, Failure] = recipe.split.failures
        self.memory_bytes = recipe.split.source.ids.nbytes + recipe.split.target.ids.nbytes
        self.stages = LoadStats()
        self.stages.add(recipe.split.opened)
        self._prefetch = prefetch
        # batches have many sizes: only where those are rounded are there few enough of them to keep
        self._buffers = Buffers(memory) if memory.is_pinned else None
        self._recorder = recorder
        self._deadline_seconds = deadline_seconds
        self._thread = ThreadPoolExecutor(1, "flatout-text worker") if prefetch else None
        if len(self.quarantine) > max_quarantine_share * self.samples:
            first = next(iter(self.quarantine.values()))
            raise TooManyQuarantined(
                f"{len(self.quarantine)} of {self.samples} lines of {recipe.split.files} cannot be used, more than "
                f"data.max_quarantine_share = {max_quarantine_share:g} allows; the first: {first.reason}"
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[TextBatch]:
        """The batches of one epoch from index `start` on, each exactly once and in order."""
        ahead: deque[Future[TextBatch]] = deque()
        upcoming = start
        for index in range(start, self.batches_per_epoch):
            while self._thread is not None and upcoming < min(index + self._prefetch, self.batches_per_epoch):
                ahead.append(self._thread.submit(self.recipe.prepare, epoch, upcoming, self._buffers))
                upcoming += 1
            if self._recorder is not None:
                self._recorder.value("queue", "depth", sum(each.done() for each in ahead))
            if ahead:
                batch = self._taken(ahead.popleft(), epoch, index)
            else:
                batch = self.recipe.prepare(epoch, index, self._buffers)
            self.stages.collate += batch.work.seconds
            if self._recorder is not None:
                work = batch.work
                self._recorder.lane(work.worker, work.stage, work.start, work.seconds)
            yield batch

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _taken(self, prepared: "Future[TextBatch]", epoch: int, index: int) -> TextBatch:
        try:
            return prepared.result(self._deadline_seconds)
        except TimeoutError:
            raise WorkerFailed(
                f"batch {index} of epoch {epoch} was not ready after {self._deadline_seconds:g} s; "
                "raise data.batch_deadline_seconds if the machine is only busy"
            ) from None
