"""Samples that are members of archives: stretches of the open archives where the kernel reads them, else requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.readers import Base, Extents, ObjectReader, Reader, Rows, Source
from flatout.errors import StorageError
from flatout.storage.counters import StoreCounters
from flatout.storage.members import MemberStore
from flatout.storage.protocol import Range, Store, counters_of


@dataclass(frozen=True)
class MemberReader:
    """One member of the store's archives for each sample."""

    store: MemberStore
    names: tuple[str, ...]
    lengths: NDArray[np.int64]

    def locate(self, rows: Rows) -> Sequence[Source | StorageError]:
        archives, offsets, plain = self._places
        if bool(plain[rows].all()):
            used, which = np.unique(archives[rows], return_inverse=True)
            files = [self.store.file(archive) for archive in used.tolist()]
            bases: list[Base] = [file for file in files if file is not None]
            if len(bases) == len(files):
                return Extents(bases, which.astype(np.int32), offsets[rows], self.lengths[rows])
        return self.store.read_many([Range(self.names[row], 0, int(self.lengths[row])) for row in rows.tolist()])

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Archive and offset of each sample, and whether its bytes lie there as they are."""
        places = [self.store.table.get(name) for name in self.names]
        values = [(-1, 0, False) if p is None else (p.archive, p.offset, not (p.deflated or p.headed)) for p in places]
        table = np.array(values, np.int64).reshape(-1, 3)
        return table[:, 0], np.ascontiguousarray(table[:, 1]), table[:, 2].astype(bool)

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        return None

    def counters(self) -> StoreCounters:
        return counters_of(self.store)


def open_reader(store: Store, names: tuple[str, ...], lengths: NDArray[np.int64]) -> Reader:
    """Of samples that are objects of the store."""
    return (MemberReader if isinstance(store, MemberStore) else ObjectReader)(store, names, lengths)  # type: ignore[arg-type]
