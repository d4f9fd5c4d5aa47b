"""What the coordinator knows, and lookups in it: shared by the parts of state.py that decide."""

from dataclasses import asdict
from typing import Any

from flatout.service.coordinator.accounting import Accounts
from flatout.service.coordinator.batch_cache import BatchCache
from flatout.service.coordinator.entities import BatchId, Lease, Producer, SharingJob, Stream
from flatout.service.coordinator.instructions import Instruction
from flatout.service.coordinator.leases import LeaseTable
from flatout.service.coordinator.policy import Policy, reuse_score


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
