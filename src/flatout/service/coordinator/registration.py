"""What a job is told when it registers: refused, where its order begins, and whom it does not share with."""

from collections.abc import Sequence

from flatout.service.coordinator.entities import SharingJob, Stream
from flatout.service.protocol.messages import Register
from flatout.units import format_bytes


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
