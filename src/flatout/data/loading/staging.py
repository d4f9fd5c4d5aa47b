"""Stage while training: what a remote store sends once is kept on local disk, and read from there ever after."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flatout.cache.sample_log import SampleLog
from flatout.data.source.dataset import Split
from flatout.data.source.pack import PackReader
from flatout.data.source.readers import ObjectReader, Reader, Rows, Source, read_source
from flatout.decisions.caching import OFF, StageChoice, choose_stage, stage_without_looking
from flatout.decisions.loading import is_url
from flatout.errors import NoSpace, StorageError
from flatout.machine.budgets import cache_folder, disk_budget_bytes, kept_bytes
from flatout.storage.counters import StoreCounters


class Underway:
    """Rows that a thread is fetching. Another that needs them waits for it: the end of an epoch and the start of the
    next are prepared together, and would ask the store twice for what both need."""

    def __init__(self) -> None:
        self._rows: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    @contextmanager
    def claimed(self, rows: list[int]) -> Iterator[tuple[set[int], set[threading.Event]]]:
        """Those of the rows that are ours to fetch until the end of the block, and what to wait for as to the others.

        Wait after the block, when nothing is claimed any more: so no two threads wait for each other.
        """
        done = threading.Event()
        with self._lock:
            theirs = {self._rows[row] for row in rows if row in self._rows}
            mine = {row for row in rows if row not in self._rows}
            self._rows.update(dict.fromkeys(mine, done))
        try:
            yield mine, theirs
        finally:
            with self._lock:
                for row in mine:
                    del self._rows[row]
            done.set()


@dataclass(frozen=True)
class StagedReader:
    """Local where a sample was read before, else the inner reader."""

    inner: Reader
    log: SampleLog
    underway: Underway = field(default_factory=Underway, compare=False, repr=False)

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        found: dict[int, Source | StorageError] = {}
        wanted = rows.tolist()
        while missing := self._not_local(wanted, found):
            with self.underway.claimed(missing) as (mine, theirs):
                self._fetch(self._not_local(list(mine), found), found)
            for done in theirs:
                done.wait()
        return [found[row] for row in wanted]

    def _not_local(self, rows: list[int], found: dict[int, Source | StorageError]) -> list[int]:
        """Add what is here to `found`; return the rows that are not."""
        for row in rows:
            if row not in found and (blob := self.log.get(row)) is not None:
                found[row] = blob
        return [row for row in rows if row not in found]

    def _fetch(self, rows: list[int], found: dict[int, Source | StorageError]) -> None:
        if rows:
            for row, source in zip(rows, self.inner.locate(np.array(rows, np.int64)), strict=True):
                answer = found[row] = read_source(source)
                if not isinstance(answer, StorageError):
                    self.log.put(row, answer)

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        return self.inner.shapes(rows)

    def counters(self) -> StoreCounters:
        return self.inner.counters()


def is_remote(split: Split) -> bool:
    """Behind an object store, or on a mount of one."""
    reader = split.reader.inner if isinstance(split.reader, StagedReader) else split.reader
    if not isinstance(reader, ObjectReader):
        store = getattr(reader, "store", None)
        return store is not None and is_url(store.url)
    return reader.on_mount or is_url(reader.store.url)


def staged(split: Split, wanted: str, pool: str = "thread") -> tuple[Split, SampleLog | None, StageChoice]:
    """The split with a stage in front where that is chosen, and the choice. `pool` is the kind of workers."""
    if (choice := stage_without_looking(wanted, is_remote(split), pool)) is not None:
        return split, None, choice
    folder = cache_folder() / f"staged-{split.storage_key()}"
    free = disk_budget_bytes(cache_folder())
    choice = choose_stage(wanted, _stored_bytes(split), kept_bytes(folder), free, folder)
    if choice.value == OFF:
        return split, None, choice
    try:
        log = SampleLog(folder).open(split.origins.locators)
    except (NoSpace, OSError) as error:
        return split, None, choice.failed(error)
    have = f"{len(log)} of {len(split)} samples are there already" if len(log) else "filled during the first epoch"
    choice = replace(choice, reason=f"{choice.reason}, {have}")
    return replace(split, reader=StagedReader(split.reader, log)), log, choice


def _stored_bytes(split: Split) -> int:
    """What the store will send: not the original files where a pack keeps them in another form."""
    reader = split.reader
    lengths = reader.index.arrays["length"][split.rows] if isinstance(reader, PackReader) else split.lengths
    return int(lengths.sum())
