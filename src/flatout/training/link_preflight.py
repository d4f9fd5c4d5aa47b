"""Before the first step: what the link between the ranks can do, and what that makes of a step of this model."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from flatout.config.schema import Config
from flatout.diagnosis.model.communication import Bucket, Link, exposed_seconds, ring_bytes, round_cap
from flatout.engine.loop import Job
from flatout.engine.parallel import Parallel
from flatout.engine.parallel.link import LinkFigures
from flatout.engine.parallel.powersgd import compressed_share
from flatout.engine.parallel.profile import StepProfile, profile_step
from flatout.errors import ConfigError
from flatout.units import format_bits_per_second, format_bytes, format_seconds


@dataclass(frozen=True)
class StepPrediction:
    """A step of the slowest rank, before the first one was made."""

    compute_seconds: float
    exposed_seconds: float
    gradient_bytes: int
    buckets: tuple[Bucket, ...]

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds


def look_at_link(ranks: Parallel, job: Job, keep: Callable[[dict[str, Any]], None]) -> list[str]:
    """Measure on all ranks together, `keep` what link.json holds, and refuse a link that is too slow (min_link).

    Returns the lines to say; none where there are no other ranks, or parallel.preflight is off.
    """
    figures = ranks.measure_link(job.learner.device.torch) if job.config.parallel.preflight else None
    if figures is None:
        return []
    profile = _profile(ranks, job)
    prediction = None
    if profile is not None:
        slowest = max(ranks.group.gather(profile.compute_seconds))
        share = compressed_share(job.learner.model, job.config.parallel)
        prediction = predict(job.config, figures, profile, slowest, share)
    interface = str(ranks.interface)
    link = _record(figures, interface, prediction)
    keep(link)
    refuse_slow_link(link, job.config)
    return list(_lines(figures, interface, prediction, job.config))


def refuse_slow_link(link: dict[str, Any], config: Config) -> None:
    """On all ranks alike: the figures are rank 0's."""
    least, found = config.parallel.min_link, link["bits_per_second"]
    if least is not None and found < least:
        raise ConfigError(
            f"the link between the ranks carries {named_speed(found)}, less than parallel.min_link = "
            f"{format_bits_per_second(least)}; raise the port's speed, choose another parallel.interface, or lower it"
        )


def predict(
    config: Config, link: LinkFigures, profile: StepProfile, compute_seconds: float, share: float
) -> StepPrediction:
    """A step of the slowest rank, with this link. `share` is what compression leaves of the bytes."""
    buckets = tuple(Bucket(size, ready) for size, ready in profile.buckets(config.parallel.bucket_bytes))
    total = sum(size for size, _ in profile.gradients)
    wire = Link(link.bytes_per_second, link.latency_seconds, share)
    local_steps = config.parallel.local_steps
    if local_steps is None:
        exposed = exposed_seconds(buckets, link.world_size, wire, profile.compute_seconds)
    else:
        exposed = (wire.latency_seconds + ring_bytes(total, link.world_size) / wire.bytes_per_second) / local_steps
    return StepPrediction(compute_seconds, exposed, total, buckets)


def _profile(ranks: Parallel, job: Job) -> StepProfile | None:
    """Of the batch that comes first; none where a rank has no sample in it, or the model cannot compute alone."""
    if job.config.parallel.mode != "ddp":
        return None
    batch = next(job.source.epoch(job.progress.epoch, job.progress.batch_index), None)
    if not all(ranks.group.gather(batch is not None and len(batch.sample_ids) > 0)):
        return None
    assert batch is not None
    inputs = job.copies.inputs(batch)
    ranks.sync_next(False)
    return profile_step(job.task, job.learner, inputs, job.config.train.accumulate)


def _record(figures: LinkFigures, interface: str, prediction: StepPrediction | None) -> dict[str, Any]:
    found = 8 * figures.bytes_per_second
    predicted = None
    if prediction is not None:
        predicted = {**asdict(prediction), "step_seconds": prediction.step_seconds}
    return {
        **asdict(figures),
        "interface": interface,
        "bits_per_second": found,
        "cap_bits_per_second": round_cap(found),
        "predicted": predicted,
    }


def _lines(figures: LinkFigures, interface: str, prediction: StepPrediction | None, config: Config) -> Iterator[str]:
    found = 8 * figures.bytes_per_second
    yield (
        f"link: {figures.world_size} ranks on {len(figures.nodes)} node(s) over {interface} ({figures.backend}): "
        f"{named_speed(found)}, {format_seconds(figures.latency_seconds)} for the smallest exchange"
    )
    for node in figures.nodes[1:]:
        yield f"link: {node.host} ({node.interface}) to the first node: {format_bits_per_second(node.bits_per_second)}"
    if prediction is None:
        return
    share = prediction.exposed_seconds / prediction.step_seconds
    compute, waiting = format_seconds(prediction.compute_seconds), format_seconds(prediction.exposed_seconds)
    yield (
        f"predicted step: {format_seconds(prediction.step_seconds)}, of which {compute} compute and {waiting} "
        f"({100 * share:.0f} %) waiting for {format_bytes(prediction.gradient_bytes)} of gradients"
    )
    if share > config.parallel.warn_exposed_share:
        yield (
            f"WARNING: {100 * share:.0f} % of a step would be spent waiting for the network "
            f"(parallel.warn_exposed_share = {config.parallel.warn_exposed_share:g}); a faster link, or see "
            "docs/slow-links.md: parallel.compress, parallel.local_steps, larger batches with train.accumulate"
        )


def named_speed(bits_per_second: float) -> str:
    """A measured rate in words, with the speed of the port it looks like."""
    cap = round_cap(bits_per_second)
    measured = format_bits_per_second(bits_per_second)
    return measured if cap is None else f"{measured}, which is a {format_bits_per_second(cap)} port"
