"""Takes messages from any transport, asks the state what to do, and does it."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flatout.cache.batch_store import OwnStore
from flatout.errors import BadBundle, NoSpace, ServiceUnavailable
from flatout.service.coordinator.entities import BatchId
from flatout.service.coordinator.instructions import Discard, End, Instruction, Make, Tell, Touch
from flatout.service.coordinator.policy import Policy
from flatout.service.coordinator.state import State
from flatout.service.protocol.messages import Claimed, Done, Failed, Lost, Message, Produce, Tick
from flatout.service.protocol.specs import batch_key

Send = Callable[..., None]
"""Sends one or more messages to a job or producer."""


class Coordinator:
    """Safe to use from several threads: one for each connection, and one for the timer.

    The lock covers a decision and what must happen in the order of decisions: allocating and removing mapped buffers,
    and sending. Nothing that waits for a store behind a network is done under it: batches are verified before the
    decision, and entries removed or renewed after it, by a thread.
    """

    def __init__(
        self, policy: Policy, store: OwnStore, trace: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = State(policy)
        self.store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._upkeep = None if store.is_mapped else StoreUpkeep(store, self._is_ready)
        self._senders: dict[str, Send] = {}
        self._enders: dict[str, Callable[[str], None]] = {}
        self._trace = None if trace is None else trace.open("a", encoding="utf-8")
        self._began = clock()
        if self._trace is not None:
            self._trace.write(json.dumps({"policy": asdict(policy)}) + "\n")

    def attach(self, who: str, send: Send, end: Callable[[str], None] | None = None) -> None:
        """From here on messages to `who` go to `send`; a producer that hangs is killed by `end(reason)`.

        Both are called with the lock held, so they must not call the coordinator.
        """
        with self._lock:
            self._senders[who] = send
            if end is not None:
                self._enders[who] = end

    def detach(self, who: str, reason: str) -> None:
        """Its connection ended."""
        with self._lock:
            self._senders.pop(who, None)
            self._enders.pop(who, None)
            self._handle(who, [Lost(reason=reason[:2000])])

    def say(self, who: str, *messages: Message) -> None:
        """Messages from `who`. What they cause to be sent, to whomever, is sent before this returns."""
        verified = [self._verified(each) if isinstance(each, Done) else each for each in messages]
        with self._lock:
            self._handle(who, verified)

    def tick(self) -> None:
        self.say("clock", Tick())

    def status(self) -> dict[str, Any]:
        """For `flatout cache`; see `Tables.status`."""
        with self._lock:
            return {
                "seconds": self._clock() - self._began,
                "store": self.store.address.rsplit("@", 1)[-1],
                **self.state.tables.status(),
            }

    def clear(self) -> None:
        """Empty the cache of everything that is not being written."""
        with self._lock:
            instructions = self.state.clear()
            self._record(self._clock(), "viewer", {"kind": "clear"}, instructions)
            self._do(instructions)

    def close(self) -> None:
        with self._lock:
            if self._trace is not None:
                self._trace.close()
                self._trace = None
        if self._upkeep is not None:
            self._upkeep.close()
        self.store.close()

    def _is_ready(self, batch: BatchId) -> bool:
        with self._lock:
            return batch in self.state.tables.cache.entries

    def _verified(self, message: Done) -> Message:
        """The message, if the batch is in the store, with the right key and checksum; else Failed."""
        with self._lock:
            lease = self.state.tables.leases.active.get(message.lease)
        if lease is None:
            return message
        try:
            self.store.verify(lease.buffer, batch_key(*lease.batch))
            return message
        except (BadBundle, ServiceUnavailable) as error:
            return Failed(lease=message.lease, reason=f"it said done, but {error}"[:2000])

    def _handle(self, who: str, messages: list[Message]) -> None:
        now, instructions = self._clock(), []
        for message in messages:
            decided = self.state.handle(now, who, message)
            self._record(now, who, message.model_dump() if self._trace is not None else {}, decided)
            instructions += decided
        self._do(instructions)

    def _record(self, now: float, who: str, message: dict[str, Any], instructions: list[Instruction]) -> None:
        if self._trace is not None:
            self._trace.write(json.dumps([now, who, message, [repr(each) for each in instructions]]) + "\n")

    def _do(self, instructions: list[Instruction]) -> None:
        missing: set[int] = set()
        outbox: dict[str, list[Message]] = {}  # sent together, since each send wakes a process
        for each in instructions:
            match each:
                case Make(buffer, count):
                    try:
                        self.store.make(buffer, count)
                    except NoSpace:
                        missing.add(buffer)
                case End(producer, reason):
                    if producer in self._enders:
                        self._enders[producer](reason)
                case Tell(to, message):
                    if (left := _unless_missing(message, missing)) is not None:
                        outbox.setdefault(to, []).append(left)
                case Discard() | Touch():
                    self._change_entry(each)
        for to, messages in outbox.items():
            self._tell(to, messages)
        for buffer in missing:
            given_up = self.state.no_space(buffer)
            self._record(self._clock(), "store", {"kind": "no_space", "buffer": buffer}, given_up)
            self._do(given_up)

    def _change_entry(self, instruction: Discard | Touch) -> None:
        """Mapped buffers are removed at once: the next `Make` counts on their room, and nothing is waited for."""
        if self._upkeep is not None:
            self._upkeep.add(instruction)
        elif isinstance(instruction, Discard):
            key = None if instruction.key is None else batch_key(*instruction.key)
            self.store.discard(instruction.buffer, key)

    def _tell(self, to: str, messages: list[Message]) -> None:
        send = self._senders.get(to)
        if send is not None:
            with suppress(ServiceUnavailable):  # the thread that receives from it notices that it is gone
                send(*messages)


def _unless_missing(message: Message, missing: set[int]) -> Message | None:
    """What to send if buffers could not be made: no order for one of them, and no buffer to a job that claimed it."""
    if isinstance(message, Produce) and message.buffer in missing:
        return None
    return Claimed() if isinstance(message, Claimed) and message.buffer in missing else message


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
