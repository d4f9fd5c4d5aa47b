"""What one rank's span file says of loading, saving and each part of a step; read in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.timeline.core_wait import LANE as CORE_WAIT
from flatout.timeline.reading import AttemptStart, SpanRow, read_spans

_STAGES = ("fetch", "decode", "augment", "collate")
_WAITED = "core wait"


@dataclass(frozen=True)
class BatchLoad:
    """What loader workers did for the training batch of one step."""

    step: int
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    augment_seconds: float = 0.0
    collate_seconds: float = 0.0
    core_wait_seconds: float = 0.0
    """Of the seconds above: ready, and without a core."""

    @property
    def seconds(self) -> float:
        return self.fetch_seconds + self.decode_seconds + self.augment_seconds + self.collate_seconds

    @property
    def core_wait_share(self) -> float:
        """As much sooner the batch would have been there with free cores."""
        return min(1.0, self.core_wait_seconds / self.seconds) if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class RankSpans:
    """Over all attempts of a rank, but for `parts`; a later attempt's word on a step replaces an earlier one's."""

    parts: dict[str, float]
    """Exclusive seconds of every part of the last attempt; empty where the rank left no file."""
    core_wait: dict[str, float]
    """Seconds of every part, over all attempts, for which the main thread was ready and had no core."""
    checkpoints: int
    validations: int
    loads: tuple[BatchLoad, ...]
    workers: int
    """Loader workers that did any work."""


def read_rank_spans(path: Path) -> RankSpans:
    """Nothing of a file that is not there."""
    parts: dict[str, float] = {}
    core_wait: dict[str, float] = {}
    checkpoints = validations = 0
    workers: set[str] = set()
    loads: dict[int, dict[str, float]] = {}
    attempt: dict[int, dict[str, float]] = {}
    for row in read_spans(path):
        if isinstance(row, AttemptStart):
            loads.update(attempt)
            parts, attempt = {"communication": 0.0}, {}
        elif not row.lane:
            parts[row.name] = parts.get(row.name, 0.0) + row.own
            core_wait[row.name] = core_wait.get(row.name, 0.0) + row.core_wait
            checkpoints += row.spans if row.name == "checkpoint" else 0
            validations += row.spans if row.name == "validation" else 0
        elif row.value is not None:
            continue  # a reading, such as the depth of a queue
        elif row.lane == CORE_WAIT:
            _add_stage(attempt, row, _WAITED)
        elif row.name in _STAGES:
            workers |= {row.lane} if row.lane.startswith("worker") else set()
            _add_stage(attempt, row, row.name)
    loads.update(attempt)
    names = (*_STAGES, _WAITED)
    batches = (BatchLoad(step, *(stages.get(name, 0.0) for name in names)) for step, stages in sorted(loads.items()))
    return RankSpans(parts, core_wait, checkpoints, validations, tuple(batches), len(workers))


def _add_stage(loads: dict[int, dict[str, float]], row: SpanRow, name: str) -> None:
    stages = loads.setdefault(row.step + 1, {})  # written after that step, about the batch of the next
    stages[name] = stages.get(name, 0.0) + row.seconds
