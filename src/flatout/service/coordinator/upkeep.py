"""Removing and renewing entries of a store behind a network, outside of the coordinator's lock."""

import threading
from collections.abc import Callable

from flatout.cache.batch_store import OwnStore
from flatout.service.coordinator.entities import BatchId
from flatout.service.coordinator.instructions import Discard, Touch
from flatout.service.protocol.specs import batch_key

_CLOSE_SECONDS = 2.0  # for what is still to be done; entries that are left are removed when their time to live ends


class StoreUpkeep:
    """A thread that carries out `Discard` and `Touch`: each is a round trip, and takes ten seconds if the store hangs.

    Only the newest instruction for a batch is kept, so the backlog is bounded by the number of batches. `is_ready` says
    whether a batch is ready now: one that was made again meanwhile is not removed, one that was evicted is not renewed.
    A removal that reaches the store late may still hit a batch that was just written: its readers make it again.
    """

    def __init__(self, store: OwnStore, is_ready: Callable[[BatchId], bool]) -> None:
        self._store = store
        self._is_ready = is_ready
        self._pending: dict[BatchId, Discard | Touch] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flatout-store-upkeep", daemon=True)
        self._thread.start()

    def add(self, instruction: Discard | Touch) -> None:
        """Returns at once."""
        if instruction.key is not None:
            with self._changed:
                self._pending.pop(instruction.key, None)
                self._pending[instruction.key] = instruction
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (instruction := self._next()) is not None:
            assert instruction.key is not None
            ready = self._is_ready(instruction.key)
            if isinstance(instruction, Touch) and ready:
                self._store.touch(batch_key(*instruction.key))
            elif isinstance(instruction, Discard) and not ready:
                self._store.discard(instruction.buffer, batch_key(*instruction.key))

    def _next(self) -> Discard | Touch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            return self._pending.pop(next(iter(self._pending))) if self._pending else None
