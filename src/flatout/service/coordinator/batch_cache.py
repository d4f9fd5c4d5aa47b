"""The buffers of the store: which batch is where, who reads it, and what is evicted when there is no room."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from flatout.service.coordinator.entities import BatchId, Buffer, Counts, Stream
from flatout.service.coordinator.instructions import Discard, Instruction, Make
from flatout.service.coordinator.policy import Policy

_UNNEEDED_SHARE, _UNNEEDED_BYTES = 0.25, 64 << 20  # most room for batches that no job needs: the smaller of both
_SAMPLED_BUFFERS = 64  # looked at for the one least worth keeping; all of them would take too long


class BatchCache:
    """Bounded room for batches.

    `reuse(batch, now)` says how soon and how often a batch will be read, `is_needed` whether it will be at all; both
    come from the table of jobs.
    """

    def __init__(
        self,
        policy: Policy,
        counts: Counts,
        reuse: Callable[[BatchId, float], float],
        is_needed: Callable[[BatchId], bool],
    ) -> None:
        self.policy = policy
        self.used_bytes = 0
        self.entries: dict[BatchId, Buffer] = {}  # ready ones
        self.buffers: OrderedDict[int, Buffer] = OrderedDict()  # in the order in which they are sampled for eviction
        self.unneeded: OrderedDict[int, None] = OrderedDict()  # ready, and no job will read them; oldest first
        self.losses = 0  # raised when a needed batch is gone: scan cursors of an earlier value are invalid
        self._counts = counts
        self._reuse = reuse
        self._is_needed = is_needed

    def publish(self, buffer: Buffer, now: float) -> None:
        """From here on the batch is found. Called only for what has been written and verified."""
        assert buffer.batch is not None
        buffer.ready, buffer.used_at, buffer.touched_at = True, now, now
        self.entries[buffer.batch] = buffer
        self.note_need(buffer.batch)

    def note_need(self, batch: BatchId) -> None:
        """Called when the jobs that read this batch have changed."""
        buffer = self.entries.get(batch)
        if buffer is None:
            return
        if self._is_needed(batch):
            self.unneeded.pop(buffer.number, None)
        else:
            self.unneeded[buffer.number] = None

    def note_reader(self, will_read: Callable[[BatchId], bool]) -> None:
        """A job came: what nobody needed before, it may."""
        for number in list(self.unneeded):
            batch = self.buffers[number].batch
            if batch is not None and will_read(batch):
                del self.unneeded[number]

    def note_needs(self, stream: str) -> None:
        for batch in [batch for batch in self.entries if batch[0] == stream]:
            self.note_need(batch)

    def allocate_buffer(
        self, now: float, number: int, stream: Stream, batch: BatchId, urgent: bool, out: list[Instruction]
    ) -> Buffer | None:
        """A buffer to write `batch` to: a new one (called `number`), or that of a batch worth less than this one.

        None where there is no room. `urgent` evicts whatever nobody reads at the moment: a job waits for this batch.

        Batches that nobody needs are kept for jobs that start a little later, but only up to a limit: reused memory is
        already mapped, new memory must be cleared and mapped by every process, at up to a third of a batch's cost.
        """
        while self._is_full(stream.batch_bytes):
            victim = self._victim(now, batch, urgent)
            if victim is None:
                if self.used_bytes + stream.batch_bytes <= self.policy.capacity_bytes:
                    break  # the batches over the limit for unneeded ones are still being read
                self._counts.no_room += 1
                return None
            self._counts.evicted += 1
            self._counts.evicted_needed += victim.number not in self.unneeded
            if self.policy.recycles and victim.bytes == stream.batch_bytes and not victim.in_doubt:
                self._forget(victim)
                victim.batch, victim.ready = None, False
                return victim
            self.discard(victim, out)
        buffer = self.buffers[number] = Buffer(number, stream.batch_bytes)
        self.used_bytes += buffer.bytes
        out.append(Make(number, buffer.bytes))
        return buffer

    def _is_full(self, count: int) -> bool:
        unneeded_bytes = len(self.unneeded) * count
        over_limit = unneeded_bytes > min(_UNNEEDED_SHARE * self.policy.capacity_bytes, _UNNEEDED_BYTES)
        return over_limit or self.used_bytes + count > self.policy.capacity_bytes

    def _victim(self, now: float, batch: BatchId, urgent: bool) -> Buffer | None:
        for number in self.unneeded:
            if self._is_free(self.buffers[number]):
                return self.buffers[number]
        best: tuple[float, Buffer] | None = None
        for _ in range(min(_SAMPLED_BUFFERS, len(self.buffers))):
            number, buffer = next(iter(self.buffers.items()))
            self.buffers.move_to_end(number)
            if buffer.ready and self._is_free(buffer):
                score = self._score(now, buffer)
                if best is None or score < best[0]:
                    best = (score, buffer)
        if best is None or (not urgent and self.policy.eviction == "reuse" and best[0] >= self._reuse(batch, now)):
            return None
        return best[1]

    def _is_free(self, buffer: Buffer) -> bool:
        """Readers of a store that does not recycle buffers have copies of their own."""
        return not buffer.readers or not self.policy.recycles

    def _score(self, now: float, buffer: Buffer) -> float:
        is_lru = self.policy.eviction == "lru" or buffer.batch is None
        return buffer.used_at if is_lru else self._reuse(buffer.batch, now)  # type: ignore[arg-type]

    def _forget(self, buffer: Buffer) -> None:
        self.losses += buffer.number not in self.unneeded
        self.unneeded.pop(buffer.number, None)
        if buffer.batch is not None and self.entries.get(buffer.batch) is buffer:
            del self.entries[buffer.batch]

    def discard(self, buffer: Buffer, out: list[Instruction]) -> None:
        self._forget(buffer)
        del self.buffers[buffer.number]
        self.used_bytes -= buffer.bytes
        out.append(Discard(buffer.number, buffer.batch))

    def shrink(self, capacity_bytes: int) -> None:
        """The store turned out to have less room than the policy says."""
        self.policy = replace(self.policy, capacity_bytes=capacity_bytes)
