"""The coordinator's mind: messages in, instructions out. No clock, no sockets, no files, no threads.

`handle(now, who, message)` is all there is. The live coordinator, the simulator and a recorded trace call the same
code. Nothing in here is irreplaceable: a batch that is lost is made again.
"""

from dataclasses import asdict
from typing import Any

from flatout.service.coordinator.parties import Buffer, Counts, Job, Key, Lease, Producer, Stream, Waiting
from flatout.service.coordinator.policy import (
    SMALL_FACTOR,
    SMALL_SECONDS,
    Allowance,
    Policy,
    handful,
    lookahead,
    reuse_score,
)
from flatout.service.coordinator.shelf import End, Instruction, Shelf, Tell, Touch
from flatout.service.protocol.messages import (
    Batches,
    Claim,
    Claimed,
    Done,
    Failed,
    Joined,
    Leave,
    Lost,
    Message,
    Next,
    Produce,
    Refused,
    Register,
    Registered,
    Spoilt,
    Tick,
)
from flatout.units import format_bytes

_RETRY_SECONDS = 0.02  # after no room was found for a batch that nobody waits for
_NEWEST_WEIGHT = 0.2  # of a measurement in a running mean
_CATCH_UP_BATCHES = 64  # one job may hold up others for, once, if it shares everything with them afterwards
_HELD_SECONDS = 0.25  # what is ready, for the rest of a handful
_STARVED_SECONDS = 0.5  # since a job last asked: it may still be limited by its data


class State:
    def __init__(self, policy: Policy) -> None:
        self.streams: dict[str, Stream] = {}
        self.jobs: dict[str, Job] = {}
        self.producers: dict[str, Producer] = {}
        self.leases: dict[int, Lease] = {}
        self.counts = Counts()
        self.allowance = Allowance(policy.usd_per_hour)
        self.shelf = Shelf(policy, self.counts, self._reuse, self._is_needed)
        self.stored_byte_seconds = 0.0
        self._making: dict[Key, Lease] = {}
        self._failures: dict[Key, tuple[int, str]] = {}
        self._serial = 0
        self._no_room_until = 0.0
        self._clock: float | None = None
        self._shared_clock = (0.0, 0.0)  # seconds and byte-seconds, / jobs: two readings' difference is a job's share

    @property
    def policy(self) -> Policy:
        return self.shelf.policy

    def handle(self, now: float, who: str, message: Message) -> list[Instruction]:
        self._advance_clocks(now)
        out: list[Instruction] = []
        match message:
            case Register():
                self._register(who, message, out)
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
            case Leave() | Lost():
                self._gone(now, who, message, out)
            case Tick():
                self._tick(now, out)
            case _:
                out.append(Tell(who, Refused(reason=f"a {type(message).__name__} is not for the coordinator")))
        self._dispatch(now, out)
        return out

    def _advance_clocks(self, now: float) -> None:
        if self._clock is not None:
            passed = max(0.0, now - self._clock)
            self.stored_byte_seconds += passed * self.shelf.used_bytes
            share = passed / max(1, len(self.jobs))
            seconds, byte_seconds = self._shared_clock
            self._shared_clock = (seconds + share, byte_seconds + share * self.shelf.used_bytes)
        self._clock = now

    def _joined(self, who: str, message: Joined) -> None:
        """Said again when a producer finds that it can take more orders at once."""
        producer = self.producers.setdefault(who, Producer(who))
        producer.slots, producer.spare, producer.usd_per_second = message.slots, message.spare, message.usd_per_second
        producer.seconds_to_start = message.seconds_to_start

    # Jobs

    def _register(self, who: str, message: Register, out: list[Instruction]) -> None:
        refusal = "this job is registered already" if who in self.jobs else self._too_large(message)
        if refusal is not None:
            out.append(Tell(who, Refused(reason=refusal)))
            return
        new = Stream(message.stream, message.spec, message.batches_per_epoch, message.batch_bytes)
        stream = self.streams.setdefault(message.stream, new)
        if stream.refused is not None:
            out.append(Tell(who, Refused(reason=stream.refused, stop=stream.stops_jobs)))
            return
        others = [job for job in self.jobs.values() if job.stream is stream and job.name != who]
        job = Job(who, stream, message.position, message.last, message.epoch, message.index % stream.batches_per_epoch)
        job.share_began, job.asked_at = self._shared_clock, self._clock or 0.0
        job.counts_began = self.counts.of_interest
        if message.anywhere and message.position == 0 and others:
            behind = min(others, key=lambda each: each.key(each.position)[1:])
            _, epoch, index = behind.key(behind.position)
            if epoch == 0 or not message.epochs_differ:
                job.epoch, job.index = epoch, index
        self.jobs[who] = job
        self.shelf.note_reader(lambda key: key[0] == stream.name and job.will_read(job.position_of(key)))
        note = None if others else self._strangers(job)
        out.append(Tell(who, Registered(epoch=job.epoch, index=job.index, jobs=len(others) + 1, note=note)))

    def _too_large(self, message: Register) -> str | None:
        capacity, least = self.policy.capacity_bytes, 2 * message.batch_bytes
        if least <= capacity:
            return None
        return (
            f"the cache of shared batches has {format_bytes(capacity)} but one batch is "
            f"{format_bytes(message.batch_bytes)} and two must fit; set data.shared_bytes to at least "
            f"{format_bytes(least)}, or make room in /dev/shm"
        )

    def _strangers(self, job: Job) -> str | None:
        """Jobs that read the same samples in batches of another size cannot share; they are told."""
        mine = job.stream.spec
        near = [each.stream.spec for each in self.jobs.values() if each.stream is not job.stream]
        near = [spec for spec in near if spec.content == mine.content]
        if not near:
            return None
        names = type(mine).model_fields
        differs = sorted(name for name in names if any(getattr(spec, name) != getattr(mine, name) for spec in near))
        return (
            f"{len(near)} other job(s) read the same data but nothing is shared with them: their {', '.join(differs)} "
            "differ; batches are shared between jobs of equal view, seed and data.batch_size"
        )[:2000]

    def _next(self, now: float, who: str, message: Next, out: list[Instruction]) -> None:
        job = self.jobs.get(who)
        if job is None:
            out.append(Tell(who, Refused(reason="this job is not registered any more; register again")))
            return
        self.counts.asks += 1
        for number in message.released:
            self._release(job, number)
        if message.step_seconds is not None:
            job.step_seconds = message.step_seconds
        job.asked_at = now
        self._move(job, message.position)
        job.asks[message.position] = job.asks.get(message.position, 0) + 1
        stream, capacity = job.stream, self.policy.capacity_bytes
        count = min(message.count, handful(capacity, stream.batch_bytes, len(self.jobs), stream.make_seconds))
        job.waiting = Waiting(message.position, count, now + message.wait_seconds, now)
        if self._more_is_coming(now, job):
            return
        served = self._serve(now, job, out)
        self.counts.hits += served
        if not served:
            self._answer_if_hopeless(now, job, out)

    def _move(self, job: Job, position: int) -> None:
        """What lies between the old and the new position is not needed by this job any more."""
        before, job.position = job.position, position
        job.asks = {each: count for each, count in job.asks.items() if each >= position}
        if before <= position <= before + SMALL_FACTOR * self.policy.window:
            if not any(other.will_read_all(job, before, position) for other in self.jobs.values()):
                for passed in range(before, position):
                    self.shelf.note_need(job.key(passed))
        else:  # it starts again, or made many batches itself
            job.checked = (-1, 0)
            self.shelf.note_needs(job.stream.name)

    def _serve(self, now: float, job: Job, out: list[Instruction]) -> int:
        """Answer with everything that is ready from the wanted position on; how many that is."""
        waiting = job.waiting
        assert waiting is not None
        buffers: list[int] = []
        for position in range(waiting.position, waiting.position + waiting.count):
            key = job.key(position)
            buffer = self.shelf.entries.get(key)
            if buffer is None or (buffers and not job.will_read(position)):
                break
            buffer.readers += 1
            buffer.used_at = now
            job.held[buffer.number] = job.held.get(buffer.number, 0) + 1
            buffers.append(buffer.number)
        if buffers:
            self._answer(job, out, waiting.position, buffers)
        return len(buffers)

    def _answer(
        self, job: Job, out: list[Instruction], position: int, buffers: list[int], denied: str | None = None
    ) -> None:
        job.waiting = None
        self.counts.denied += denied is not None
        seconds, byte_seconds = (now - then for now, then in zip(self._shared_clock, job.share_began, strict=True))
        jobs = sum(each.stream is job.stream for each in self.jobs.values())
        made, evicted, cold = (now - then for now, then in zip(self.counts.of_interest, job.counts_began, strict=True))
        out.append(Tell(job.name, Batches(
            position=position, buffers=buffers, denied=denied, jobs=jobs, share_seconds=max(0.0, seconds),
            share_byte_seconds=max(0.0, byte_seconds), share_gb_seconds=job.share_gb_seconds,
            share_requests=job.share_requests, busy=sum(each.free for each in self.producers.values()) <= 1,
            made=made, evicted_needed=evicted, cold_starts=cold,
        )))  # fmt: skip

    def _answer_if_hopeless(self, now: float, job: Job, out: list[Instruction]) -> None:
        waiting = job.waiting
        if waiting is None or self._serve_late(now, job, out):
            return
        if job.stream.refused is not None:
            job.waiting = None
            out.append(Tell(job.name, Refused(reason=job.stream.refused, stop=job.stream.stops_jobs)))
            return
        reason = self._hopeless(now, job, waiting.position)
        if reason is not None or now >= waiting.until:
            self._answer(job, out, waiting.position, [], reason)

    def _hopeless(self, now: float, job: Job, position: int) -> str | None:
        """Why it makes no sense to go on waiting for a batch."""
        key = job.key(position)
        count, why = self._failures.get(key, (0, ""))
        if count >= self.policy.most_failures:
            return f"given up after {count} failures, the last: {why}"[:2000]
        if job.asks.get(position, 0) >= self.policy.most_asks:
            return f"not ready after {self.policy.most_asks} asks"
        if key in self._making:
            return None
        if not job.will_read(position):
            return "it lies beyond what the job registered for"
        if not self.producers:
            return "there is no producer"
        if job.stream.batch_bytes > self.policy.capacity_bytes:
            return "there is no room in the store"
        free = any(not producer.usd_per_second for producer in self.producers.values())
        if not free and not self.allowance.allows(now):
            return f"producers have spent what they may, {self.policy.usd_per_hour} USD an hour"
        return None

    def _release(self, job: Job, number: int) -> None:
        if number in job.held:
            job.held[number] -= 1
            if not job.held[number]:
                del job.held[number]
            if number in self.shelf.buffers:
                self.shelf.buffers[number].readers -= 1

    def _gone(self, now: float, who: str, message: Leave | Lost, out: list[Instruction]) -> None:
        reason = message.reason if isinstance(message, Lost) else "it left"
        self.producers.pop(who, None)
        job = self.jobs.pop(who, None)
        for lease in [each for each in self.leases.values() if each.holder == who]:
            self._lease_failed(now, lease, f"its producer is gone: {reason}", out)
        if job is not None:
            for buffer in [self.shelf.buffers[each] for each in job.held if each in self.shelf.buffers]:
                buffer.readers -= job.held[buffer.number]
                buffer.in_doubt = True  # its arrays may live on, in a job that only lost its connection
            if job.last is None or job.position < job.last:
                self.shelf.note_needs(job.stream.name)
        for each in self.jobs.values():
            self._answer_if_hopeless(now, each, out)

    def _spoilt(self, who: str, message: Spoilt, out: list[Instruction]) -> None:
        job = self.jobs.get(who)
        buffer = None if job is None else self.shelf.entries.get(job.key(message.position))
        if buffer is not None and buffer.number == message.buffer:
            self.counts.spoilt += 1
            self.shelf.discard(buffer, out)

    # Leases

    def _claim(self, now: float, who: str, message: Claim, out: list[Instruction]) -> None:
        job = self.jobs.get(who)
        key = None if job is None else job.key(message.position)
        if job is None or key is None or key in self.shelf.entries or key in self._making:
            out.append(Tell(who, Claimed()))
            return
        buffer = self.shelf.room(self._number(), job.stream, key, False, out)
        if buffer is None:
            out.append(Tell(who, Claimed()))
            return
        lease = self._lease(now, key, who, buffer)
        out.append(
            Tell(who, Claimed(lease=lease.number, buffer=buffer.number, bytes=buffer.bytes, epoch=key[1], index=key[2]))
        )

    def _number(self) -> int:
        self._serial += 1
        return self._serial

    def _lease(self, now: float, key: Key, holder: str, buffer: Buffer) -> Lease:
        lease = Lease(self._number(), key, holder, buffer.number, now, now + self.policy.lease_seconds)
        buffer.key, buffer.ready = key, False
        self.leases[lease.number] = self._making[key] = lease
        return lease

    def _end_lease(self, lease: Lease) -> Buffer:
        del self.leases[lease.number]
        del self._making[lease.key]
        if lease.holder in self.producers:
            self.producers[lease.holder].leases.discard(lease.number)
        return self.shelf.buffers[lease.buffer]

    def _done(self, now: float, who: str, message: Done, out: list[Instruction]) -> None:
        """Only after the transport has verified what was written."""
        lease = self.leases.get(message.lease)
        if lease is None or lease.holder != who:
            return  # expired meanwhile; the buffer was given up with the lease
        self.shelf.publish(self._end_lease(lease), now)
        self._failures.pop(lease.key, None)
        self._count_made(who, lease, message)
        for job in self.jobs.values():
            waits = job.waiting is not None and job.stream is self.streams[lease.key[0]]
            if waits and not self._more_is_coming(now, job):
                self._serve_late(now, job, out)

    def _serve_late(self, now: float, job: Job, out: list[Instruction]) -> bool:
        served = self._serve(now, job, out)
        self.counts.waited += served > 0
        self.counts.hits += max(0, served - 1)
        return served > 0

    def _more_is_coming(self, now: float, job: Job) -> bool:
        """A job that is much faster than its data gets small batches by the handful: the same number of them, at a
        fraction of the messages."""
        seconds, step, waiting = job.stream.make_seconds, job.step_seconds, job.waiting
        if waiting is None or seconds is None or step is None or seconds > SMALL_SECONDS or 8 * step > seconds:
            return False
        if now >= min(waiting.until, waiting.since + _HELD_SECONDS):
            return False
        while waiting.ready < waiting.count:
            key = job.key(waiting.position + waiting.ready)
            if key not in self.shelf.entries:
                return key in self._making
            waiting.ready += 1
        return False

    def _count_made(self, who: str, lease: Lease, message: Done) -> None:
        counts, stream, producer = self.counts, self.streams[lease.key[0]], self.producers.get(who)
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
            readers = [job for job in self.jobs.values() if job.stream is stream]
            for job in readers:
                job.share_gb_seconds += message.gb_seconds / len(readers)
                job.share_requests += 1 / len(readers)

    def _failed(self, now: float, who: str, message: Failed, out: list[Instruction]) -> None:
        lease = self.leases.get(message.lease)
        if lease is None or lease.holder != who:
            return
        if message.stream_is != "fine" and who in self.producers:
            stream = self.streams[lease.key[0]]
            stream.refused, stream.stops_jobs = message.reason, message.stream_is == "another"
        self._lease_failed(now, lease, message.reason, out)

    def _lease_failed(self, now: float, lease: Lease, reason: str, out: list[Instruction]) -> None:
        """The buffer goes too: whoever had it may still write to it."""
        self.shelf.discard(self._end_lease(lease), out)
        self.allowance.spend(-lease.charged_usd)
        self._failures[lease.key] = (self._failures.get(lease.key, (0, ""))[0] + 1, reason)
        self.counts.failures += 1
        for job in self.jobs.values():
            if job.stream.name == lease.key[0]:
                self._answer_if_hopeless(now, job, out)

    def no_space(self, buffer: int) -> list[Instruction]:
        """The store could not do what `Make` said: it has less room than was thought. Nobody's fault."""
        out: list[Instruction] = []
        self.shelf.shrink(self.shelf.used_bytes - self.shelf.buffers[buffer].bytes)
        for lease in [each for each in self.leases.values() if each.buffer == buffer]:
            self.shelf.discard(self._end_lease(lease), out)
            self.allowance.spend(-lease.charged_usd)
        return out

    def clear(self) -> list[Instruction]:
        """Empty the cache of everything that is not being written."""
        out: list[Instruction] = []
        for buffer in list(self.shelf.entries.values()):
            self.shelf.discard(buffer, out)
        return out

    def _tick(self, now: float, out: list[Instruction]) -> None:
        for lease in [each for each in self.leases.values() if each.expires <= now]:
            self.counts.expired += 1
            waited = f"{now - lease.began:.1f} s"
            if lease.number in self.leases:  # else it failed with another of the same producer
                self._lease_failed(now, lease, f"its lease expired after {waited}", out)
            if lease.holder in self.producers:  # nothing more is given to one that hangs
                out.append(End(lease.holder, f"batch {lease.key[2]} of epoch {lease.key[1]} took over {waited}"))
                self._gone(now, lease.holder, Lost(reason="it was ended because it hung"), out)
        for job in self.jobs.values():
            if not self._more_is_coming(now, job):
                self._answer_if_hopeless(now, job, out)
        if self.policy.keep_alive_seconds is not None:
            self._keep_alive(now, self.policy.keep_alive_seconds, out)

    def _keep_alive(self, now: float, every_seconds: float, out: list[Instruction]) -> None:
        for key, buffer in self.shelf.entries.items():
            if now - buffer.touched_at >= every_seconds and buffer.number not in self.shelf.unneeded:
                buffer.touched_at = now
                out.append(Touch(key))

    # Looking ahead

    def _is_needed(self, key: Key) -> bool:
        return any(job.stream.name == key[0] and job.will_read(job.position_of(key)) for job in self.jobs.values())

    def _reuse(self, key: Key) -> float:
        now = self._clock or 0.0
        etas = (job.eta_seconds(key, now) for job in self.jobs.values())
        return reuse_score(eta for eta in etas if eta is not None)

    def _dispatch(self, now: float, out: list[Instruction]) -> None:
        """Give the most urgent batches to whoever has a hand free."""
        while (producer := self._idle_producer(now)) is not None:
            wanted = self._most_urgent(now, producer)
            if wanted is None:
                return
            key, urgent = wanted
            stream = self.streams[key[0]]
            buffer = self.shelf.room(self._number(), stream, key, urgent, out)
            if buffer is None:
                self._no_room_until = now + _RETRY_SECONDS
                return
            lease = self._lease(now, key, producer.name, buffer)
            producer.leases.add(lease.number)
            lease.charged_usd = producer.usd_per_second * (stream.make_seconds or 0.0)
            self.allowance.spend(lease.charged_usd)
            spec = None if stream.name in producer.streams else stream.spec
            producer.streams.add(stream.name)
            out.append(Tell(producer.name, Produce(
                lease=lease.number, stream=stream.name, spec=spec, epoch=key[1], index=key[2], buffer=buffer.number,
                bytes=buffer.bytes
            )))  # fmt: skip

    def _idle_producer(self, now: float) -> Producer | None:
        """The cheapest with a free hand, and of those the least busy."""
        idle = [each for each in self.producers.values() if each.free + each.spare > 0]
        chosen = min(idle, key=lambda each: (each.usd_per_second, -each.free), default=None)
        return None if chosen is not None and chosen.usd_per_second and not self.allowance.allows(now) else chosen

    def _most_urgent(self, now: float, producer: Producer) -> tuple[Key, bool] | None:
        """The batch to make next, and whether a job stands still for want of it."""
        wanted: list[tuple[Job, int, Key, bool]] = []
        found: dict[Any, tuple[int, Key] | None] = {}  # the same for jobs side by side
        for job in self.jobs.values():
            stream = job.stream
            ahead = lookahead(self.policy.window, job.step_seconds, stream.make_seconds, producer.seconds_to_start)
            place = (stream.name, job.epoch, job.index, job.position, job.last, ahead)
            if place not in found:
                found[place] = self._first_missing(job, ahead)
            if (missing := found[place]) is not None:
                distance, key = missing
                waits = distance == 0 and job.waiting is not None
                if waits or now >= self._no_room_until:
                    wanted.append((job, distance, key, waits))
        if not wanted:
            return None
        if all(key == wanted[0][2] for _, _, key, _ in wanted):  # jobs side by side
            return wanted[0][2], any(waits for *_, waits in wanted)
        _, _, key, waits = min(wanted, key=lambda each: self._urgency(now, each[0], each[1]))
        return key, waits

    def _urgency(self, now: float, job: Job, distance: int) -> float:
        """Seconds until it is late, or (below zero) who waits longest comes first."""
        eta = distance * job.pace_seconds(now)
        if job.waiting is not None and distance == 0:
            eta = job.waiting.since - now - 1e-6
        return eta - 1e6 if self._is_catching_up(now, job) else eta

    def _is_catching_up(self, now: float, job: Job) -> bool:
        """A little behind another: two jobs that are limited by their data would else keep their distance for ever, and
        every batch would be made twice."""
        if job.waiting is None and now - job.asked_at > _STARVED_SECONDS:
            return False
        here = job.key(job.position)
        for other in self.jobs.values():
            if other.stream is job.stream and 0 < other.position - other.position_of(here) <= _CATCH_UP_BATCHES:
                return True
        return False

    def _first_missing(self, job: Job, ahead: int) -> tuple[int, Key] | None:
        """How far ahead of a job the next batch is that nobody has made or is making; None within its window."""
        if job.stream.refused is not None:
            return None
        losses, position = self.shelf.losses, job.position
        first = max(position, job.checked[1]) if job.checked[0] == losses else position
        for place in range(first, position + ahead):
            job.checked = (losses, place)
            if not job.will_read(place):
                return None
            key = job.key(place)
            if key not in self.shelf.entries and key not in self._making and not self._is_given_up(key):
                return place - position, key
        return None

    def _is_given_up(self, key: Key) -> bool:
        return self._failures.get(key, (0, ""))[0] >= self.policy.most_failures

    # Looking in

    def status(self) -> dict[str, Any]:
        """Everything a person may ask about, as plain values."""
        return {
            "jobs": {
                job.name: {
                    "stream": job.stream.name[:12], "position": job.position, "last": job.last,
                    "step_seconds": job.step_seconds, "waiting": job.waiting is not None, "held": len(job.held),
                }
                for job in self.jobs.values()
            },
            "producers": {
                each.name: {"slots": each.slots, "busy": len(each.leases)} for each in self.producers.values()
            },
            "streams": {
                each.name[:12]: {
                    "batch_bytes": each.batch_bytes, "batches_per_epoch": each.batches_per_epoch,
                    "make_seconds": each.make_seconds, "refused": each.refused,
                }
                for each in self.streams.values()
            },
            "ready": len(self.shelf.entries), "leases": len(self.leases), "used_bytes": self.shelf.used_bytes,
            "capacity_bytes": self.policy.capacity_bytes, "stored_byte_seconds": self.stored_byte_seconds,
            "spent_usd": self.allowance.spent_usd, "counts": asdict(self.counts),
        }  # fmt: skip
