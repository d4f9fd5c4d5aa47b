"""What one rank's span file says of loading, saving and each part of a step; read in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.timeline.reading import AttemptStart, SpanRow, read_spans

_STAGES = ("fetch", "decode", "augment", "collate")


@dataclass(frozen=True)
class BatchLoad:
    """What loader workers did for the training batch of one step."""

    step: int
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    augment_seconds: float = 0.0
    collate_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.fetch_seconds + self.decode_seconds + self.augment_seconds + self.collate_seconds


@dataclass(frozen=True)
class RankSpans:
    """Over all attempts of a rank, but for `parts`; a later attempt's word on a step replaces an earlier one's."""

    parts: dict[str, float]
    """Exclusive seconds of every part of the last attempt; empty where the rank left no file."""
    checkpoints: int
    loads: tuple[BatchLoad, ...]
    queue_depths: tuple[float, ...]
    """Batches that were ready, whenever the loader looked."""
    workers: int
    """Loader workers that did any work."""


def read_rank_spans(path: Path) -> RankSpans:
    """Nothing of a file that is not there."""
    parts: dict[str, float] = {}
    checkpoints = 0
    depths: list[float] = []
    workers: set[str] = set()
    loads: dict[int, dict[str, float]] = {}
    attempt: dict[int, dict[str, float]] = {}
    for row in read_spans(path):
        if isinstance(row, AttemptStart):
            loads.update(attempt)
            parts, attempt = {"communication": 0.0}, {}
        elif not row.lane:
            parts[row.name] = parts.get(row.name, 0.0) + row.own
            checkpoints += row.spans if row.name == "checkpoint" else 0
        elif row.value is not None:
            depths += [row.value] if (row.lane, row.name) == ("queue", "depth") else []
        elif row.name in _STAGES:
            workers |= {row.lane} if row.lane.startswith("worker") else set()
            _add_stage(attempt, row)
    loads.update(attempt)
    batches = (BatchLoad(step, *(stages.get(name, 0.0) for name in _STAGES)) for step, stages in sorted(loads.items()))
    return RankSpans(parts, checkpoints, tuple(batches), tuple(depths), len(workers))


def _add_stage(loads: dict[int, dict[str, float]], row: SpanRow) -> None:
    stages = loads.setdefault(row.step + 1, {})  # written after that step, about the batch of the next
    stages[row.name] = stages.get(row.name, 0.0) + row.seconds
