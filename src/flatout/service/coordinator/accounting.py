"""What is counted and charged: counters, the cost cap, and each job's share of the service."""

from typing import Any

from flatout.service.coordinator.entities import Counts, Lease, Producer, SharingJob, Stream
from flatout.service.coordinator.policy import Allowance
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
