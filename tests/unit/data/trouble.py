"""A reader that makes trouble for one sample. Importable, because a worker process must be able to unpickle it."""

import mmap
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.dataset import Split
from flatout.data.source.readers import Reader, Rows, Source
from flatout.errors import StorageError, StoreUnreachable
from flatout.storage.counters import StoreCounters

GATE = threading.Event()  # "stuck" waits for it; another process has one of its own, which nobody opens
ENTERED = threading.Event()  # somebody waits at the gate


@dataclass(frozen=True)
class TroubleReader:
    inner: Reader
    row: int
    trouble: str

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        sources = list(self.inner.locate(rows))
        for slot in np.flatnonzero(rows == self.row).tolist():
            sources[slot] = self._source(sources[slot])
        return sources

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        return None

    def counters(self) -> StoreCounters:
        return self.inner.counters()

    def _source(self, real: Source | StorageError) -> Source | StorageError:
        match self.trouble:
            case "deadly":
                return _bytes_whose_touch_is_death()
            case "stuck":
                ENTERED.set()
                GATE.wait()
                return real
            case "unreachable":
                return StoreUnreachable("no answer from s3://bucket after 30 s; check the network")
            case _:
                raise ZeroDivisionError("a mistake in our own code")


def _bytes_whose_touch_is_death() -> memoryview:
    """Mapped and then cut off, as when a pack is overwritten under a running job: the kernel sends SIGBUS."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(2 * mmap.PAGESIZE))
        file.flush()
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        os.ftruncate(file.fileno(), 0)
        return view


def troubled(split: Split, row: int, trouble: str) -> Split:
    return replace(split, reader=TroubleReader(split.reader, row, trouble))
