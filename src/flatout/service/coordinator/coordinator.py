"""The coordinator's hands: takes messages from any transport, asks the state what to do, and does it."""

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
from flatout.service.coordinator.instructions import Discard, End, Instruction, Make, Tell, Touch
from flatout.service.coordinator.policy import Policy
from flatout.service.coordinator.state import State
from flatout.service.protocol.messages import Claimed, Done, Failed, Lost, Message, Produce, Tick
from flatout.service.protocol.specs import batch_key

Send = Callable[..., None]  # of one or more messages


class Coordinator:
    """Safe to use from several threads: one for each connection, and one for the clock."""

    def __init__(
        self, policy: Policy, store: OwnStore, trace: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = State(policy)
        self.store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._senders: dict[str, Send] = {}
        self._enders: dict[str, Callable[[str], None]] = {}
        self._trace = None if trace is None else trace.open("a", encoding="utf-8")
        self._began = clock()
        if self._trace is not None:
            self._trace.write(json.dumps({"policy": asdict(policy)}) + "\n")

    def attach(self, who: str, send: Send, end: Callable[[str], None] | None = None) -> None:
        """From here on `who` can be told things, and (a producer) ended."""
        with self._lock:
            self._senders[who] = send
            if end is not None:
                self._enders[who] = end

    def detach(self, who: str, reason: str) -> None:
        with self._lock:
            self._senders.pop(who, None)
            self._enders.pop(who, None)
            self._handle(who, [Lost(reason=reason[:2000])])

    def say(self, who: str, *messages: Message) -> None:
        """Messages from `who`; answers, to whomever, are sent before this returns."""
        looked_at = [self._looked_at(each) if isinstance(each, Done) else each for each in messages]
        with self._lock:
            self._handle(who, looked_at)

    def tick(self) -> None:
        self.say("clock", Tick())

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {
                "seconds": self._clock() - self._began,
                "store": self.store.address.rsplit("@", 1)[-1],
                **self.state.status(),
            }

    def clear(self) -> None:
        with self._lock:
            instructions = self.state.clear()
            self._record(self._clock(), "viewer", {"kind": "clear"}, instructions)
            self._do(instructions)

    def close(self) -> None:
        with self._lock:
            if self._trace is not None:
                self._trace.close()
                self._trace = None
        self.store.close()

    def _looked_at(self, message: Done) -> Message:
        """Ready only after a verified write: whoever says done has a batch of the right key and checksum to show."""
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
        letters: dict[str, list[Message]] = {}  # one for each, whatever there is to say: a letter wakes a process
        for each in instructions:
            match each:
                case Make(buffer, count):
                    try:
                        self.store.make(buffer, count)
                    except NoSpace:
                        missing.add(buffer)
                case Discard(buffer, key):
                    self.store.discard(buffer, None if key is None else batch_key(*key))
                case End(producer, reason):
                    if producer in self._enders:
                        self._enders[producer](reason)
                case Touch(key):
                    self.store.touch(batch_key(*key))
                case Tell(to, message):
                    if (left := _unless_missing(message, missing)) is not None:
                        letters.setdefault(to, []).append(left)
        for to, messages in letters.items():
            self._tell(to, messages)
        for buffer in missing:
            given_up = self.state.no_space(buffer)
            self._record(self._clock(), "store", {"kind": "no_space", "buffer": buffer}, given_up)
            self._do(given_up)

    def _tell(self, to: str, messages: list[Message]) -> None:
        send = self._senders.get(to)
        if send is not None:
            with suppress(ServiceUnavailable):  # its own thread notices that it is gone
                send(*messages)


def _unless_missing(message: Message, missing: set[int]) -> Message | None:
    """An order for a buffer that could not be made is not given; a job that wanted to write is told not to."""
    if isinstance(message, Produce) and message.buffer in missing:
        return None
    return Claimed() if isinstance(message, Claimed) and message.buffer in missing else message
