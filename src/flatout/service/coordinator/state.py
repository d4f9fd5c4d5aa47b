"""The coordinator's decisions: messages in, instructions out. No clock, no sockets, no files, no threads.

`State.handle(now, who, message)` is called by the live coordinator, by the simulator and by the replay of a trace.
Nothing kept here is irreplaceable: a batch that is lost is made again.
"""

from collections.abc import Sequence

from flatout.service.coordinator.answers import Answers
from flatout.service.coordinator.entities import Lease, Producer, SharingJob, Stream
from flatout.service.coordinator.instructions import End, Instruction, Tell, Touch
from flatout.service.coordinator.policy import Policy
from flatout.service.coordinator.scheduling import Scheduler
from flatout.service.coordinator.tables import Tables
from flatout.service.protocol.messages import (
    Claim,
    Claimed,
    Done,
    Failed,
    Joined,
    Leave,
    Lost,
    Message,
    Next,
    Refused,
    Register,
    Registered,
    Spoilt,
    Tick,
)
from flatout.units import format_bytes


class State:
    """`handle` dispatches to one method for each kind of message; answers.py and scheduling.py decide the rest."""

    def __init__(self, policy: Policy) -> None:
        self.tables = Tables(policy)
        self._answers = Answers(self.tables)
        self._scheduler = Scheduler(self.tables)

    def handle(self, now: float, who: str, message: Message) -> list[Instruction]:
        """`now` is in seconds of any clock that does not go back; `who` is the name of a connection."""
        tables = self.tables
        tables.accounts.advance_clock(now, len(tables.jobs), tables.cache.used_bytes)
        out: list[Instruction] = []
        match message:
            case Register():
                self._register(now, who, message, out)
            case Next():
                self._next(now, who, message, out)
            case Claim():
                self._claim(now, who, message, out)
            case Done():
                self._done(now, who, message, out)
            case Failed():
                self._failed(now, who, message, out)
            case Spoilt():
                self._spoilt(who, message, out)
            case Joined():
                self._joined(who, message)
            case Leave():
                self._gone(now, who, "it left", out)
            case Lost():
                self._gone(now, who, message.reason, out)
            case Tick():
                self._tick(now, out)
            case _:
                out.append(Tell(who, Refused(reason=f"a {type(message).__name__} is not for the coordinator")))
        self._scheduler.assign(now, out)
        return out

    def no_space(self, buffer: int) -> list[Instruction]:
        """The store could not carry out `Make`: it has less room than thought. The batch is not to blame."""
        out: list[Instruction] = []
        cache = self.tables.cache
        cache.shrink(cache.used_bytes - cache.buffers[buffer].bytes)
        for lease in self.tables.leases.on_buffer(buffer):
            self.tables.drop_lease(lease, out)
        return out

    def clear(self) -> list[Instruction]:
        """Empty the cache of everything that is not being written."""
        out: list[Instruction] = []
        for buffer in list(self.tables.cache.entries.values()):
            self.tables.cache.discard(buffer, out)
        return out

    def _register(self, now: float, who: str, message: Register, out: list[Instruction]) -> None:
        tables = self.tables
        refusal = (
            "this job is registered already" if who in tables.jobs else too_large(message, tables.policy.capacity_bytes)
        )
        if refusal is not None:
            out.append(Tell(who, Refused(reason=refusal)))
            return
        stream = tables.streams.setdefault(message.stream, new_stream(message))
        if stream.refused is not None:
            out.append(Tell(who, Refused(reason=stream.refused, stop=stream.stops_jobs)))
            return
        others = tables.readers_of(stream)
        job = new_job(who, stream, message, others)
        job.asked_at = now
        tables.accounts.open_account(job)
        tables.jobs[who] = job
        tables.cache.note_reader(lambda batch: batch[0] == stream.name and job.will_read(job.position_of(batch)))
        note = None if others else unshared_note(job, list(tables.jobs.values()))
        out.append(Tell(who, Registered(epoch=job.epoch, index=job.index, jobs=len(others) + 1, note=note)))

    def _next(self, now: float, who: str, message: Next, out: list[Instruction]) -> None:
        job = self.tables.jobs.get(who)
        if job is None:
            out.append(Tell(who, Refused(reason="this job is not registered any more; register again")))
        else:
            self._answers.ask(now, job, message, out)

    def _claim(self, now: float, who: str, message: Claim, out: list[Instruction]) -> None:
        """A job is about to make a batch itself; where nobody else does, it gets a buffer to write it to."""
        tables, answer = self.tables, Claimed()
        job = tables.jobs.get(who)
        batch = None if job is None else job.batch_id(message.position)
        if job is not None and batch is not None and not tables.is_here_or_coming(batch):
            number = tables.leases.next_number()
            buffer = tables.cache.allocate_buffer(now, number, job.stream, batch, False, out)
            if buffer is not None:
                lease = tables.leases.grant(now, batch, who, buffer)
                _, epoch, index = batch
                answer = Claimed(lease=lease.number, buffer=buffer.number, bytes=buffer.bytes, epoch=epoch, index=index)
        out.append(Tell(who, answer))

    def _done(self, now: float, who: str, message: Done, out: list[Instruction]) -> None:
        """Comes only after coordinator.py has verified what was written."""
        tables, lease = self.tables, self.tables.leases.of(message.lease, who)
        if lease is None:
            return  # it expired meanwhile, and its buffer was removed
        stream = tables.streams[lease.batch[0]]
        tables.end_lease(lease)
        tables.cache.publish(tables.cache.buffers[lease.buffer], now)
        tables.leases.note_success(lease.batch)
        tables.accounts.count_made(lease, message, stream, tables.producers.get(who), tables.readers_of(stream))
        self._answers.answer_waiting(now, stream.name, out)

    def _failed(self, now: float, who: str, message: Failed, out: list[Instruction]) -> None:
        lease = self.tables.leases.of(message.lease, who)
        if lease is None:
            return
        if message.stream_is != "fine" and who in self.tables.producers:
            stream = self.tables.streams[lease.batch[0]]
            stream.refused, stream.stops_jobs = message.reason, message.stream_is == "another"
        self._fail_lease(now, lease, message.reason, out)

    def _fail_lease(self, now: float, lease: Lease, reason: str, out: list[Instruction]) -> None:
        self.tables.drop_lease(lease, out)
        self.tables.leases.note_failure(lease.batch, reason)
        self.tables.accounts.counts.failures += 1
        for job in self.tables.jobs.values():
            if job.stream.name == lease.batch[0]:
                self._answers.answer_if_over(now, job, out)

    def _spoilt(self, who: str, message: Spoilt, out: list[Instruction]) -> None:
        job = self.tables.jobs.get(who)
        buffer = None if job is None else self.tables.cache.entries.get(job.batch_id(message.position))
        if buffer is not None and buffer.number == message.buffer:
            self.tables.accounts.counts.spoilt += 1
            self.tables.cache.discard(buffer, out)

    def _joined(self, who: str, message: Joined) -> None:
        """Sent again by a producer that has found that it can take more orders at once."""
        producer = self.tables.producers.setdefault(who, Producer(who))
        producer.slots, producer.spare, producer.usd_per_second = message.slots, message.spare, message.usd_per_second
        producer.seconds_to_start = message.seconds_to_start

    def _gone(self, now: float, who: str, reason: str, out: list[Instruction]) -> None:
        """A job or producer has left or was lost."""
        tables = self.tables
        tables.producers.pop(who, None)
        job = tables.jobs.pop(who, None)
        for lease in tables.leases.held_by(who):
            self._fail_lease(now, lease, f"its producer is gone: {reason}", out)
        if job is not None:
            for buffer in [tables.cache.buffers[each] for each in job.held if each in tables.cache.buffers]:
                buffer.readers -= job.held[buffer.number]
                buffer.in_doubt = True  # a job that only lost its connection still has arrays on it
            if job.last is None or job.position < job.last:
                tables.cache.note_needs(job.stream.name)
        for each in tables.jobs.values():
            self._answers.answer_if_over(now, each, out)

    def _tick(self, now: float, out: list[Instruction]) -> None:
        """Everything that happens because time has passed."""
        for lease in self.tables.leases.expired(now):
            self._expire(now, lease, out)
        self._answers.answer_overdue(now, out)
        if self.tables.policy.keep_alive_seconds is not None:
            self._keep_alive(now, self.tables.policy.keep_alive_seconds, out)

    def _expire(self, now: float, lease: Lease, out: list[Instruction]) -> None:
        self.tables.accounts.counts.expired += 1
        waited, (_, epoch, index) = f"{now - lease.began:.1f} s", lease.batch
        if lease.number in self.tables.leases.active:  # else it failed with another lease of the same producer
            self._fail_lease(now, lease, f"its lease expired after {waited}", out)
        if lease.holder in self.tables.producers:
            out.append(End(lease.holder, f"batch {index} of epoch {epoch} took over {waited}"))
            self._gone(now, lease.holder, "it was ended because it hung", out)  # now: it gets no further orders

    def _keep_alive(self, now: float, every_seconds: float, out: list[Instruction]) -> None:
        cache = self.tables.cache
        for batch, buffer in cache.entries.items():
            if now - buffer.touched_at >= every_seconds and buffer.number not in cache.unneeded:
                buffer.touched_at = now
                out.append(Touch(batch))


def new_stream(message: Register) -> Stream:
    return Stream(message.stream, message.spec, message.batches_per_epoch, message.batch_bytes)


def new_job(name: str, stream: Stream, message: Register, others: Sequence[SharingJob]) -> SharingJob:
    """A job that may start anywhere, and has read nothing yet, starts with the last of the `others` of its stream."""
    epoch, index = message.epoch, message.index % stream.batches_per_epoch
    if message.anywhere and message.position == 0 and others:
        _, found_epoch, found_index = min(
            (each.batch_id(each.position) for each in others), key=lambda batch: batch[1:]
        )
        if found_epoch == 0 or not message.epochs_differ:
            epoch, index = found_epoch, found_index
    return SharingJob(name, stream, message.position, message.last, epoch, index)


def too_large(message: Register, capacity_bytes: int) -> str | None:
    """Why the store cannot serve the stream at all; None if it can."""
    least = 2 * message.batch_bytes
    if least <= capacity_bytes:
        return None
    return (
        f"the cache of shared batches has {format_bytes(capacity_bytes)} but one batch is "
        f"{format_bytes(message.batch_bytes)} and two must fit; set data.shared_bytes to at least "
        f"{format_bytes(least)}, or make room in /dev/shm"
    )


def unshared_note(job: SharingJob, jobs: Sequence[SharingJob]) -> str | None:
    """For the first job of a stream: which other jobs read the same samples, but not the same batches, and why."""
    mine = job.stream.spec
    near = [each.stream.spec for each in jobs if each.stream is not job.stream]
    near = [spec for spec in near if spec.content == mine.content]
    if not near:
        return None
    names = type(mine).model_fields
    differs = sorted(name for name in names if any(getattr(spec, name) != getattr(mine, name) for spec in near))
    return (
        f"{len(near)} other job(s) read the same data but nothing is shared with them: their {', '.join(differs)} "
        "differ; batches are shared between jobs of equal view, seed and data.batch_size"
    )[:2000]
