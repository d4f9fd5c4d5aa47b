"""The buffers of the cache: which batch lies where, who reads it, and what gives way when there is no room."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from flatout.service.coordinator.parties import Buffer, Counts, Key, Stream
from flatout.service.coordinator.policy import Policy
from flatout.service.protocol.messages import Message

_LEFT_OVER_SHARE, _LEFT_OVER_BYTES = 0.25, 64 << 20  # most of the room for batches that no job needs
_SAMPLED = 64  # buffers looked at for the least useful one


@dataclass(frozen=True)
class Tell:
    """Send a message to a job or producer."""

    to: str
    message: Message


@dataclass(frozen=True)
class Make:
    """Allocate a new buffer before anything else is done."""

    buffer: int
    bytes: int


@dataclass(frozen=True)
class Discard:
    """Remove a buffer; whoever still has it mapped keeps it."""

    buffer: int
    key: Key | None


@dataclass(frozen=True)
class End:
    """Kill a producer that hangs; it will be reported lost."""

    producer: str
    reason: str


@dataclass(frozen=True)
class Touch:
    """Remind the keeper of an entry that it is still needed."""

    key: Key


Instruction = Tell | Make | Discard | End | Touch


class Shelf:
    """Bounded room. `reuse` says how soon and how often a batch will be read, `is_needed` whether it will be at all."""

    def __init__(
        self, policy: Policy, counts: Counts, reuse: Callable[[Key], float], is_needed: Callable[[Key], bool]
    ) -> None:
        self.policy = policy
        self.used_bytes = 0
        self.entries: dict[Key, Buffer] = {}  # ready ones
        self.buffers: OrderedDict[int, Buffer] = OrderedDict()  # in the order in which they are looked at
        self.unneeded: OrderedDict[int, None] = OrderedDict()  # ready, and no job will read them; oldest first
        self.losses = 0  # batches that were there, or were being made, and are not any more although a job needs them
        self._counts = counts
        self._reuse = reuse
        self._is_needed = is_needed

    def publish(self, buffer: Buffer, now: float) -> None:
        """From here on the batch is found. Only ever called for what has been written and verified."""
        assert buffer.key is not None
        buffer.ready, buffer.used_at, buffer.touched_at = True, now, now
        self.entries[buffer.key] = buffer
        self.note_need(buffer.key)

    def note_need(self, key: Key) -> None:
        """A job came, went or moved on: does anybody still need this batch?"""
        buffer = self.entries.get(key)
        if buffer is None:
            return
        if self._is_needed(key):
            self.unneeded.pop(buffer.number, None)
        else:
            self.unneeded[buffer.number] = None

    def note_reader(self, will_read: Callable[[Key], bool]) -> None:
        """A job came: what nobody needed, it may."""
        for number in list(self.unneeded):
            key = self.buffers[number].key
            if key is not None and will_read(key):
                del self.unneeded[number]

    def note_needs(self, stream: str) -> None:
        for key in [key for key in self.entries if key[0] == stream]:
            self.note_need(key)

    def room(self, number: int, stream: Stream, key: Key, urgent: bool, out: list[Instruction]) -> Buffer | None:
        """A buffer to write to: a new one (called `number`), or that of a batch worth less than this one.

        What nobody needs is kept a while for jobs that start a little later, but not for long: memory that is used
        again is in place, new memory must be cleared and mapped by everybody, at up to a third of the price of a batch.
        """
        while self._is_full(stream.batch_bytes):
            victim = self._victim(key, urgent)
            if victim is None:
                if self.used_bytes + stream.batch_bytes <= self.policy.capacity_bytes:
                    break  # what is left over is still being read
                self._counts.no_room += 1
                return None
            self._counts.evicted += 1
            self._counts.evicted_needed += victim.number not in self.unneeded
            if self.policy.recycles and victim.bytes == stream.batch_bytes and not victim.in_doubt:
                self._forget(victim)
                victim.key, victim.ready = None, False
                return victim
            self.discard(victim, out)
        buffer = self.buffers[number] = Buffer(number, stream.batch_bytes)
        self.used_bytes += buffer.bytes
        out.append(Make(number, buffer.bytes))
        return buffer

    def _is_full(self, count: int) -> bool:
        left_over = len(self.unneeded) * count > min(_LEFT_OVER_SHARE * self.policy.capacity_bytes, _LEFT_OVER_BYTES)
        return left_over or self.used_bytes + count > self.policy.capacity_bytes

    def _victim(self, key: Key, urgent: bool) -> Buffer | None:
        for number in self.unneeded:
            if self._is_free(self.buffers[number]):
                return self.buffers[number]
        best: tuple[float, Buffer] | None = None
        for _ in range(min(_SAMPLED, len(self.buffers))):
            number, buffer = next(iter(self.buffers.items()))
            self.buffers.move_to_end(number)
            if buffer.ready and self._is_free(buffer):
                score = self._score(buffer)
                if best is None or score < best[0]:
                    best = (score, buffer)
        if best is None or (not urgent and self.policy.eviction == "reuse" and best[0] >= self._reuse(key)):
            return None
        return best[1]

    def _is_free(self, buffer: Buffer) -> bool:
        """Readers of a store that is not mapped have a copy of their own."""
        return not buffer.readers or not self.policy.recycles

    def _score(self, buffer: Buffer) -> float:
        return buffer.used_at if self.policy.eviction == "lru" or buffer.key is None else self._reuse(buffer.key)

    def _forget(self, buffer: Buffer) -> None:
        self.losses += buffer.number not in self.unneeded
        self.unneeded.pop(buffer.number, None)
        if buffer.key is not None and self.entries.get(buffer.key) is buffer:
            del self.entries[buffer.key]

    def discard(self, buffer: Buffer, out: list[Instruction]) -> None:
        self._forget(buffer)
        del self.buffers[buffer.number]
        self.used_bytes -= buffer.bytes
        out.append(Discard(buffer.number, buffer.key))

    def shrink(self, capacity_bytes: int) -> None:
        """The store has less room than was thought."""
        self.policy = replace(self.policy, capacity_bytes=capacity_bytes)
