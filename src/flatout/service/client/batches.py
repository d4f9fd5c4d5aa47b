"""Batches that are ready in the store, opened as arrays and checked to be the ones that this job reads."""

import itertools
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from flatout.cache.batch_store import BatchStore
from flatout.cache.bundle import read_bundle
from flatout.data.batch import Prepared
from flatout.data.loading.pools import Key
from flatout.data.loading.prepare import BatchPlan
from flatout.errors import BadBundle
from flatout.service.protocol.messages import Batches, Register
from flatout.service.protocol.specs import assemble, batch_key, check_contents, check_samples

_COPIED_BYTES = 1 << 16  # arrays up to this size are copied, so that keeping labels does not keep the whole buffer


with warnings.catch_warnings():  # torch warns once per process that a read-only array could be written to
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"read-only", np.uint8))


class _LentArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """Sits between a mapped buffer and the arrays cut from it: it is deleted when the last of them is."""

    number: int
    released: deque[int]

    def __del__(self) -> None:
        self.released.append(self.number)


def lend(mapped: memoryview, number: int, released: deque[int]) -> memoryview:
    """The same memory; `released` gets the number when nothing that was cut from it is left."""
    lent = _LentArray(len(mapped), np.uint8, mapped)
    lent.number, lent.released = number, released
    return lent.data


class ReadyBatch(NamedTuple):
    """Where a batch that is ready can be read."""

    position: int
    buffer: int


class OpenedBatch(NamedTuple):
    prepared: Prepared
    bytes: int


def ready_batches(answer: Batches) -> Iterator[ReadyBatch]:
    return map(ReadyBatch, itertools.count(answer.position), answer.buffers)


class StreamOrder:
    """From the (epoch, index) that the loader asks for to positions and batches of the stream.

    Position 0 is the batch (register.epoch, register.index), which may lie within an epoch: there other jobs were when
    this one started. The first answer of a service decides that, so `register` changes once.
    """

    def __init__(self, register: Register) -> None:
        self.register = register

    def position(self, key: Key) -> int:
        return key[0] * self.register.batches_per_epoch + key[1]

    def stream_key(self, key: Key) -> Key:
        """Epoch and index, in the stream, of what the loader calls `key`."""
        register = self.register
        return register.epoch + key[0], (register.index + key[1]) % register.batches_per_epoch

    def at(self, position: int) -> Key:
        """Epoch and index, in the stream, of a position."""
        return self.stream_key(divmod(position, self.register.batches_per_epoch))

    def name(self, stream_key: Key) -> bytes:
        return batch_key(self.register.stream, *stream_key)


class BatchOpener:
    """Opens batches of one connection: `released` collects the buffers whose arrays are gone. Used by two threads."""

    def __init__(self, plan: BatchPlan, order: StreamOrder, store: BatchStore) -> None:
        self.released: deque[int] = deque()
        self.is_free = store.is_mapped  # opening costs nothing: all of an answer may be opened at once
        self.sharers = 1  # jobs that read the stream, as of the last answer
        self._plan = plan
        self._order = order
        self._store = store

    def open(self, item: ReadyBatch) -> OpenedBatch | Exception:
        """The batch, or why it cannot be used: gone, damaged, or made of other samples or bytes."""
        epoch, index = key = self._order.at(item.position)
        name = self._order.name(key)
        try:
            mapped = self._store.read(item.buffer, name, self._order.register.batch_bytes)
            lent = lend(mapped, item.buffer, self.released)
            bundle = read_bundle(lent, name, verify=False)  # the coordinator has verified it, or the store its seal
            arrays = {
                each: array.copy() if array.nbytes <= _COPIED_BYTES else array for each, array in bundle.arrays.items()
            }
            prepared = assemble(epoch, index, arrays, bundle.meta)
            wanted = self._plan.ids(epoch, index)
            check_samples(prepared, wanted)
            check_contents(prepared, self._plan.split, wanted)
        except (BadBundle, KeyError, TypeError, ValueError) as error:
            return error
        if not self.is_free:
            prepared.work.clear()  # times of another machine's clock
        stages = prepared.stages  # requests to an object store are paid once, by all who read the batch
        stages.store_requests = round(stages.store_requests / self.sharers)
        stages.store_bytes = round(stages.store_bytes / self.sharers)
        return OpenedBatch(prepared, bundle.bytes)
