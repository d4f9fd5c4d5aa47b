"""What the coordinator knows, and lookups in it: shared by the parts of state.py that decide."""

from dataclasses import asdict
from typing import Any

from flatout.service.coordinator.batch_cache import BatchCache
from flatout.service.coordinator.entities import BatchId, Buffer, Counts, Lease, Producer, SharingJob, Stream
from flatout.service.coordinator.instructions import Instruction
from flatout.service.coordinator.policy import Allowance, Policy, reuse_score
from flatout.service.protocol.messages import Done

_NEWEST_WEIGHT = 0.2  # of a measurement in a running mean


class Accounts:
    """`shared_clock` is (seconds, byte-seconds held by the cache), both divided by the number of jobs as they pass: the
    difference of two readings is the share of a job that was there in between."""

    def __init__(self, usd_per_hour: float | None) -> None:
        self.counts = Counts()
        self.allowance = Allowance(usd_per_hour)
        self.stored_byte_seconds = 0.0
        self.shared_clock = (0.0, 0.0)
        self._clock: float | None = None

    def advance_clock(self, now: float, jobs: int, used_bytes: int) -> None:
        """Called before each message is handled, with what was there since the one before."""
        if self._clock is not None:
            passed = max(0.0, now - self._clock)
            self.stored_byte_seconds += passed * used_bytes
            share = passed / max(1, jobs)
            seconds, byte_seconds = self.shared_clock
            self.shared_clock = (seconds + share, byte_seconds + share * used_bytes)
        self._clock = now

    def open_account(self, job: SharingJob) -> None:
        job.clock_at_start, job.counters_at_start = self.shared_clock, self.counts.counters_for_jobs

    def share_of(self, job: SharingJob) -> dict[str, Any]:
        """The job's share so far, as the fields of `Batches`."""
        (seconds, byte_seconds), (first_seconds, first_byte_seconds) = self.shared_clock, job.clock_at_start
        (made, evicted, cold), first = self.counts.counters_for_jobs, job.counters_at_start
        return {
            "share_seconds": max(0.0, seconds - first_seconds),
            "share_byte_seconds": max(0.0, byte_seconds - first_byte_seconds),
            "share_gb_seconds": job.share_gb_seconds,
            "share_requests": job.share_requests,
            "made": made - first[0],
            "evicted_needed": evicted - first[1],
            "cold_starts": cold - first[2],
        }

    def count_made(
        self, lease: Lease, message: Done, stream: Stream, producer: Producer | None, readers: list[SharingJob]
    ) -> None:
        """One batch was made by `producer`, or (None) written back by a job; `readers` share its cost equally."""
        counts = self.counts
        counts.made_bytes += message.bytes
        if producer is None:
            counts.written_back += 1
            return
        counts.made += 1
        counts.made_seconds += message.seconds
        counts.cold_starts += message.cold
        counts.requests += producer.usd_per_second > 0
        counts.gb_seconds += message.gb_seconds
        if not message.cold:
            before = stream.make_seconds or message.seconds
            stream.make_seconds = before + _NEWEST_WEIGHT * (message.seconds - before)
        self.allowance.spend(producer.usd_per_second * message.seconds - lease.charged_usd)
        if producer.usd_per_second:
            for job in readers:
                job.share_gb_seconds += message.gb_seconds / len(readers)
                job.share_requests += 1 / len(readers)


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


class Tables:
    """Jobs, streams, producers, leases and buffers. Jobs and producers are known by the name of their connection."""

    def __init__(self, policy: Policy) -> None:
        self.jobs: dict[str, SharingJob] = {}
        self.streams: dict[str, Stream] = {}
        self.producers: dict[str, Producer] = {}
        self.leases = LeaseTable(policy.lease_seconds, policy.most_failures)
        self.accounts = Accounts(policy.usd_per_hour)
        self.cache = BatchCache(policy, self.accounts.counts, self.reuse, self.is_needed)

    @property
    def policy(self) -> Policy:
        """As it is now: the cache lowers the capacity when the store has less room."""
        return self.cache.policy

    def readers_of(self, stream: Stream) -> list[SharingJob]:
        return [job for job in self.jobs.values() if job.stream is stream]

    def is_needed(self, batch: BatchId) -> bool:
        """Whether any job will still read it."""
        return any(job.stream.name == batch[0] and job.will_read(job.position_of(batch)) for job in self.jobs.values())

    def is_here_or_coming(self, batch: BatchId) -> bool:
        return batch in self.cache.entries or batch in self.leases.by_batch

    def reuse(self, batch: BatchId, now: float) -> float:
        """Worth of keeping the batch, see `reuse_score`."""
        etas = (job.eta_seconds(batch, now) for job in self.jobs.values())
        return reuse_score(eta for eta in etas if eta is not None)

    def end_lease(self, lease: Lease) -> None:
        self.leases.end(lease)
        if lease.holder in self.producers:
            self.producers[lease.holder].leases.discard(lease.number)

    def drop_lease(self, lease: Lease, out: list[Instruction]) -> None:
        """End it without a batch. The buffer is removed, since the holder may still write to it."""
        self.end_lease(lease)
        self.cache.discard(self.cache.buffers[lease.buffer], out)
        self.accounts.allowance.spend(-lease.charged_usd)

    def status(self) -> dict[str, Any]:
        """For `flatout cache`, as plain values."""
        return {
            "jobs": {job.name: _job_status(job) for job in self.jobs.values()},
            "producers": {
                each.name: {"slots": each.slots, "busy": len(each.leases)} for each in self.producers.values()
            },
            "streams": {each.name[:12]: _stream_status(each) for each in self.streams.values()},
            "ready": len(self.cache.entries),
            "leases": len(self.leases.active),
            "used_bytes": self.cache.used_bytes,
            "capacity_bytes": self.policy.capacity_bytes,
            "stored_byte_seconds": self.accounts.stored_byte_seconds,
            "spent_usd": self.accounts.allowance.spent_usd,
            "counts": asdict(self.accounts.counts),
        }


def _job_status(job: SharingJob) -> dict[str, Any]:
    return {
        "stream": job.stream.name[:12],
        "position": job.position,
        "last": job.last,
        "step_seconds": job.step_seconds,
        "waiting": job.waiting is not None,
        "held": len(job.held),
    }


def _stream_status(stream: Stream) -> dict[str, Any]:
    return {
        "batch_bytes": stream.batch_bytes,
        "batches_per_epoch": stream.batches_per_epoch,
        "make_seconds": stream.make_seconds,
        "refused": stream.refused,
    }
