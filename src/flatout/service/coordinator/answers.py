"""When and with what a job's ask for batches is answered."""

from flatout.service.coordinator.entities import SharingJob, WaitingAsk
from flatout.service.coordinator.instructions import Instruction, Tell
from flatout.service.coordinator.policy import SMALL_BATCH_FACTOR, SMALL_BATCH_SECONDS, max_batches_per_answer
from flatout.service.coordinator.tables import Tables
from flatout.service.protocol.messages import Batches, Next, Refused

_HELD_SECONDS = 0.25  # longest that batches which are ready are held back until the answer is full
_FAST_JOB_FACTOR = 8  # steps of a job in the time of one batch; answers to faster jobs are held back


class Answers:
    """Every ask is answered once: with batches, with none when its time is over, or with the reason to stop waiting."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def ask(self, now: float, job: SharingJob, message: Next, out: list[Instruction]) -> None:
        """Take note of what the job says about itself, and answer at once if there is something to answer."""
        tables, stream = self._tables, job.stream
        tables.accounts.counts.asks += 1
        for number in message.released:
            self._release(job, number)
        if message.step_seconds is not None:
            job.step_seconds = message.step_seconds
        job.asked_at = now
        self._move(job, message.position)
        job.asks[message.position] = job.asks.get(message.position, 0) + 1
        most = max_batches_per_answer(
            tables.policy.capacity_bytes, stream.batch_bytes, len(tables.jobs), stream.make_seconds
        )
        job.waiting = WaitingAsk(message.position, min(message.count, most), now + message.wait_seconds, now)
        if self._should_hold_answer(now, job):
            return
        served = self._serve(now, job, out)
        tables.accounts.counts.hits += served
        if not served:
            self.answer_if_over(now, job, out)

    def answer_waiting(self, now: float, stream: str, out: list[Instruction]) -> None:
        """A batch of the stream has become ready."""
        for job in self._tables.jobs.values():
            if job.waiting is not None and job.stream.name == stream and not self._should_hold_answer(now, job):
                self._serve_late(now, job, out)

    def answer_overdue(self, now: float, out: list[Instruction]) -> None:
        """Called several times a second, and when something may have become hopeless."""
        for job in self._tables.jobs.values():
            if not self._should_hold_answer(now, job):
                self.answer_if_over(now, job, out)

    def answer_if_over(self, now: float, job: SharingJob, out: list[Instruction]) -> None:
        """Answer if something is ready, if waiting has become pointless, or if the time is over."""
        waiting = job.waiting
        if waiting is None or self._serve_late(now, job, out):
            return
        if job.stream.refused is not None:
            job.waiting = None
            out.append(Tell(job.name, Refused(reason=job.stream.refused, stop=job.stream.stops_jobs)))
            return
        reason = self._denial(now, job, waiting.position)
        if reason is not None or now >= waiting.until:
            self._answer(job, out, waiting.position, [], reason)

    def _release(self, job: SharingJob, number: int) -> None:
        if number in job.held:
            job.held[number] -= 1
            if not job.held[number]:
                del job.held[number]
            if number in self._tables.cache.buffers:
                self._tables.cache.buffers[number].readers -= 1

    def _move(self, job: SharingJob, position: int) -> None:
        """The batches between the old and the new position are not needed by this job any more."""
        tables = self._tables
        before, job.position = job.position, position
        job.asks = {each: count for each, count in job.asks.items() if each >= position}
        if before <= position <= before + SMALL_BATCH_FACTOR * tables.policy.window:
            if not any(other.will_read_all(job, before, position) for other in tables.jobs.values()):
                for passed in range(before, position):
                    tables.cache.note_need(job.batch_id(passed))
        else:  # it starts again, or made many batches itself
            job.scan_cursor = (-1, 0)
            tables.cache.note_needs(job.stream.name)

    def _should_hold_answer(self, now: float, job: SharingJob) -> bool:
        """Whether more of the batches that were asked for are being made, and the answer should wait for them.

        Only for small batches and a job much faster than its data: it gets as many batches with fewer messages.
        """
        seconds, step, waiting = job.stream.make_seconds, job.step_seconds, job.waiting
        if waiting is None or seconds is None or step is None:
            return False
        if seconds > SMALL_BATCH_SECONDS or _FAST_JOB_FACTOR * step > seconds:
            return False
        if now >= min(waiting.until, waiting.since + _HELD_SECONDS):
            return False
        while waiting.ready < waiting.count:
            batch = job.batch_id(waiting.position + waiting.ready)
            if batch not in self._tables.cache.entries:
                return batch in self._tables.leases.by_batch
            waiting.ready += 1
        return False

    def _serve(self, now: float, job: SharingJob, out: list[Instruction]) -> int:
        """Answer with everything that is ready from the wanted position on; how many batches that is."""
        waiting = job.waiting
        assert waiting is not None
        buffers: list[int] = []
        for position in range(waiting.position, waiting.position + waiting.count):
            buffer = self._tables.cache.entries.get(job.batch_id(position))
            if buffer is None or (buffers and not job.will_read(position)):
                break
            buffer.readers += 1
            buffer.used_at = now
            job.held[buffer.number] = job.held.get(buffer.number, 0) + 1
            buffers.append(buffer.number)
        if buffers:
            self._answer(job, out, waiting.position, buffers, None)
        return len(buffers)

    def _serve_late(self, now: float, job: SharingJob, out: list[Instruction]) -> bool:
        """The first batch of the answer was waited for, the others were ready."""
        served, counts = self._serve(now, job, out), self._tables.accounts.counts
        counts.waited += served > 0
        counts.hits += max(0, served - 1)
        return served > 0

    def _answer(
        self, job: SharingJob, out: list[Instruction], position: int, buffers: list[int], denied: str | None
    ) -> None:
        tables = self._tables
        job.waiting = None
        tables.accounts.counts.denied += denied is not None
        answer = Batches(
            position=position,
            buffers=buffers,
            denied=denied,
            jobs=len(tables.readers_of(job.stream)),
            busy=sum(each.free for each in tables.producers.values()) <= 1,
            **tables.accounts.share_of(job),
        )
        out.append(Tell(job.name, answer))

    def _denial(self, now: float, job: SharingJob, position: int) -> str | None:
        """Why waiting for the batch is pointless, so that the job must make it itself; None while it is not."""
        tables, policy, batch = self._tables, self._tables.policy, job.batch_id(position)
        if (given_up := tables.leases.given_up(batch)) is not None:
            return given_up
        if job.asks.get(position, 0) >= policy.most_asks:
            return f"not ready after {policy.most_asks} asks"
        if batch in tables.leases.by_batch:
            return None
        if not job.will_read(position):
            return "it lies beyond what the job registered for"
        if not tables.producers:
            return "there is no producer"
        if job.stream.batch_bytes > policy.capacity_bytes:
            return "there is no room in the store"
        unpaid = any(not producer.usd_per_second for producer in tables.producers.values())
        if not unpaid and not tables.accounts.allowance.allows(now):
            return f"producers have spent what they may, {policy.usd_per_hour} USD an hour"
        return None
