"""Which batches are being made, by whom, and which attempts have failed."""

from flatout.service.coordinator.entities import BatchId, Buffer, Lease


class LeaseTable:
    """A batch has at most one lease at a time. Numbers of leases and buffers come from one counter, never reused."""

    def __init__(self, lease_seconds: float, most_failures: int) -> None:
        self.active: dict[int, Lease] = {}
        self.by_batch: dict[BatchId, Lease] = {}
        self._lease_seconds = lease_seconds
        self._most_failures = most_failures
        self._failures: dict[BatchId, tuple[int, str]] = {}  # how many since it was last made, and the last reason
        self._serial = 0

    def next_number(self) -> int:
        self._serial += 1
        return self._serial

    def grant(self, now: float, batch: BatchId, holder: str, buffer: Buffer) -> Lease:
        lease = Lease(self.next_number(), batch, holder, buffer.number, now, now + self._lease_seconds)
        buffer.batch, buffer.ready = batch, False
        self.active[lease.number] = self.by_batch[batch] = lease
        return lease

    def end(self, lease: Lease) -> None:
        del self.active[lease.number]
        del self.by_batch[lease.batch]

    def of(self, number: int, holder: str) -> Lease | None:
        """The lease if it is still this holder's; None after it expired, and for a number that was never its own."""
        lease = self.active.get(number)
        return lease if lease is not None and lease.holder == holder else None

    def held_by(self, holder: str) -> list[Lease]:
        return [lease for lease in self.active.values() if lease.holder == holder]

    def on_buffer(self, buffer: int) -> list[Lease]:
        return [lease for lease in self.active.values() if lease.buffer == buffer]

    def expired(self, now: float) -> list[Lease]:
        return [lease for lease in self.active.values() if lease.expires <= now]

    def note_failure(self, batch: BatchId, reason: str) -> None:
        self._failures[batch] = (self._failures.get(batch, (0, ""))[0] + 1, reason)

    def note_success(self, batch: BatchId) -> None:
        self._failures.pop(batch, None)

    def given_up(self, batch: BatchId) -> str | None:
        """Why no producer will be asked for the batch again; None while it is worth another attempt."""
        failures, why = self._failures.get(batch, (0, ""))
        return (
            f"given up after {failures} failures, the last: {why}"[:2000] if failures >= self._most_failures else None
        )
