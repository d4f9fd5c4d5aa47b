"""Which batch is made next, and by which producer."""

from typing import Any

from flatout.service.coordinator.entities import BatchId, Producer, SharingJob
from flatout.service.coordinator.instructions import Instruction, Tell
from flatout.service.coordinator.policy import lookahead
from flatout.service.coordinator.tables import Tables
from flatout.service.protocol.messages import Produce

_RETRY_SECONDS = 0.02  # before another attempt to find room for batches that nobody waits for
_CATCH_UP_BATCHES = 64  # a job at most this far behind another is served first until it has caught up
_STARVED_SECONDS = 0.5  # a job that asked within this time may be limited by its data


class Scheduler:
    """Gives the most urgent batches to producers with a free slot, after every message."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._no_room_until = 0.0

    def assign(self, now: float, out: list[Instruction]) -> None:
        """Orders, until every slot is taken, nothing is missing, or there is no room."""
        tables = self._tables
        while (producer := self._idle_producer(now)) is not None:
            wanted = self._most_urgent(now, producer)
            if wanted is None:
                return
            batch, urgent = wanted
            stream = tables.streams[batch[0]]
            buffer = tables.cache.allocate_buffer(now, tables.leases.next_number(), stream, batch, urgent, out)
            if buffer is None:
                self._no_room_until = now + _RETRY_SECONDS
                return
            lease = tables.leases.grant(now, batch, producer.name, buffer)
            producer.leases.add(lease.number)
            lease.charged_usd = producer.usd_per_second * (stream.make_seconds or 0.0)
            tables.accounts.allowance.spend(lease.charged_usd)
            order = Produce(
                lease=lease.number,
                stream=stream.name,
                spec=None if stream.name in producer.streams else stream.spec,
                epoch=batch[1],
                index=batch[2],
                buffer=buffer.number,
                bytes=buffer.bytes,
            )
            producer.streams.add(stream.name)
            out.append(Tell(producer.name, order))

    def _idle_producer(self, now: float) -> Producer | None:
        """The cheapest that takes another order, and of those the least busy."""
        tables = self._tables
        idle = [each for each in tables.producers.values() if each.free + each.spare > 0]
        chosen = min(idle, key=lambda each: (each.usd_per_second, -each.free), default=None)
        if chosen is not None and chosen.usd_per_second and not tables.accounts.allowance.allows(now):
            return None
        return chosen

    def _most_urgent(self, now: float, producer: Producer) -> tuple[BatchId, bool] | None:
        """The batch to make next, and whether a job waits for it."""
        window = self._tables.policy.window
        wanted: list[tuple[SharingJob, int, BatchId, bool]] = []
        found: dict[Any, tuple[int, BatchId] | None] = {}  # jobs at the same place miss the same batch: one scan
        for job in self._tables.jobs.values():
            stream = job.stream
            ahead = lookahead(window, job.step_seconds, stream.make_seconds, producer.seconds_to_start)
            place = (stream.name, job.epoch, job.index, job.position, job.last, ahead)
            if place not in found:
                found[place] = self._first_missing(job, ahead)
            if (missing := found[place]) is not None:
                distance, batch = missing
                waits = distance == 0 and job.waiting is not None
                if waits or now >= self._no_room_until:
                    wanted.append((job, distance, batch, waits))
        if not wanted:
            return None
        if all(batch == wanted[0][2] for _, _, batch, _ in wanted):  # no need to compare urgency
            return wanted[0][2], any(waits for *_, waits in wanted)
        _, _, batch, waits = min(wanted, key=lambda each: self._urgency(now, each[0], each[1]))
        return batch, waits

    def _urgency(self, now: float, job: SharingJob, distance: int) -> float:
        """Seconds until the batch is late; below zero for jobs that wait, the lower the longer they have."""
        eta = distance * job.pace_seconds(now)
        if job.waiting is not None and distance == 0:
            eta = job.waiting.since - now - 1e-6
        return eta - 1e6 if self._is_catching_up(now, job) else eta

    def _is_catching_up(self, now: float, job: SharingJob) -> bool:
        """A little behind another job and limited by its data.

        Served in turns, two such jobs would keep their distance, and every batch would be made twice.
        """
        if job.waiting is None and now - job.asked_at > _STARVED_SECONDS:
            return False
        here = job.batch_id(job.position)
        for other in self._tables.jobs.values():
            if other.stream is job.stream and 0 < other.position - other.position_of(here) <= _CATCH_UP_BATCHES:
                return True
        return False

    def _first_missing(self, job: SharingJob, ahead: int) -> tuple[int, BatchId] | None:
        """The next batch of a job that is neither there nor being made, and how many positions ahead it is; None if
        there is none within `ahead`."""
        if job.stream.refused is not None:
            return None
        entries, leases, position = self._tables.cache.entries, self._tables.leases, job.position
        losses = self._tables.cache.losses
        first = max(position, job.scan_cursor[1]) if job.scan_cursor[0] == losses else position
        for place in range(first, position + ahead):
            job.scan_cursor = (losses, place)
            if not job.will_read(place):
                return None
            batch = job.batch_id(place)
            if batch not in entries and batch not in leases.by_batch and leases.given_up(batch) is None:
                return place - position, batch
        return None
