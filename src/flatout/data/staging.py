"""Stage while training: what a remote store sends once is kept on local disk, and read from there ever after."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flatout.cache.sample_log import SampleLog
from flatout.data.budgets import cache_folder, disk_budget_bytes, kept_bytes
from flatout.data.dataset import Split
from flatout.data.pack import PackReader
from flatout.data.readers import ObjectReader, Reader, Rows, Source, read_source
from flatout.errors import NoSpace, StorageError
from flatout.storage import is_fuse_mount
from flatout.units import format_bytes


@dataclass(frozen=True)
class StagedReader:
    """Local where a sample was read before, else the inner reader."""

    inner: Reader
    log: SampleLog

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        sources: list[Source | StorageError | None] = [self.log.get(row) for row in rows.tolist()]
        missing = [slot for slot, source in enumerate(sources) if source is None]
        if missing:
            for slot, source in zip(missing, self.inner.locate(rows[missing]), strict=True):
                answer = read_source(source)
                sources[slot] = answer
                if not isinstance(answer, StorageError):
                    self.log.put(int(rows[slot]), answer)
        return [source for source in sources if source is not None]

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        return self.inner.shapes(rows)


def is_remote(split: Split) -> bool:
    """Behind an object store, or on a mount of one."""
    reader = split.reader.inner if isinstance(split.reader, StagedReader) else split.reader
    if not isinstance(reader, ObjectReader):
        store = getattr(reader, "store", None)
        return store is not None and "://" in store.url
    path = reader.store.local_path(reader.names[0]) if reader.names else None
    return is_fuse_mount(path) is not None if path is not None else "://" in reader.store.url


def staged(split: Split, wanted: str) -> tuple[Split, SampleLog | None, str | None]:
    """The split with a stage in front where that makes sense, and a sentence about it (None for local data)."""
    if wanted == "off" or not is_remote(split):
        return split, None, None
    folder = cache_folder() / f"staged-{split.storage_key()}"
    needed, free = _stored_bytes(split), disk_budget_bytes(cache_folder())
    if needed - kept_bytes(folder) > free:
        return split, None, f"stage: off, {format_bytes(needed)} do not fit the {format_bytes(free)} to spare on disk"
    try:
        log = SampleLog(folder).open()
    except (NoSpace, OSError) as error:
        return split, None, f"stage: off, {error}"
    have = f"{len(log)} of {len(split)} samples are there already" if len(log) else "filled during the first epoch"
    note = f"stage: {format_bytes(needed)} to {folder}, {have}"
    return replace(split, reader=StagedReader(split.reader, log)), log, note


def _stored_bytes(split: Split) -> int:
    """What the store will send: not the original files where a pack keeps them in another form."""
    reader = split.reader
    lengths = reader.index.arrays["length"][split.rows] if isinstance(reader, PackReader) else split.lengths
    return int(lengths.sum())
