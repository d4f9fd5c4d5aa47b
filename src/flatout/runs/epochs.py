"""How long epochs took, part by part, and why that is not the number of batches times the time of one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from flatout.runs.directory import RunDirectory
from flatout.runs.reading import Run

_BETWEEN = ("validation", "checkpoint")


@dataclass
class EpochTime:
    """The main thread's seconds in one epoch, over all attempts; `parts` add up to `seconds`."""

    epoch: int
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + seconds


@dataclass(frozen=True)
class EpochEstimate:
    """N/B x time per batch against what an epoch took; `reasons`, in seconds, add up to the difference."""

    batches: float
    batch_seconds: float
    estimated_seconds: float
    actual_seconds: float
    reasons: dict[str, float]


def epoch_times(run: Run) -> list[EpochTime]:
    """From the spans of rank 0. Start-up belongs to no epoch; work that a kill made necessary twice counts twice."""
    epoch_of = {int(row["step"]): int(row["epoch"]) for row in run.steps}
    found: dict[int, EpochTime] = {}
    for attempt in _attempts(RunDirectory(run.directory).spans / "rank0.jsonl"):
        _add_attempt(attempt, epoch_of, found)
    return [found[epoch] for epoch in sorted(found)]


def _attempts(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The main thread's spans of each attempt; a line cut short by a kill is left out."""
    spans: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "attempt" in row:
            yield spans
            spans = []
        elif "own" in row and "lane" not in row:
            spans.append(row)
    yield spans


def _add_attempt(spans: Sequence[Mapping[str, Any]], epoch_of: Mapping[int, int], found: dict[int, EpochTime]) -> None:
    """A wait for data is for the step that follows it; everything else belongs to the step it names."""
    waiting: list[Mapping[str, Any]] = []
    reached = 0.0
    for span in spans:
        if span["name"] == "startup":
            reached = span["start"] + span["seconds"]
        elif span["name"] == "data_wait":
            waiting.append(span)
        elif (epoch := epoch_of.get(span["step"])) is not None:
            time = found.setdefault(epoch, EpochTime(epoch))
            for each in (*waiting, span):
                time.add(each["name"], each["own"])
            waiting.clear()
            end = max(reached, span["start"] + span["seconds"])
            time.seconds, reached = time.seconds + end - reached, end
            time.parts["unattributed"] = 0.0
            time.parts["unattributed"] = time.seconds - sum(time.parts.values())


def estimate_epoch(run: Run, times: Sequence[EpochTime]) -> EpochEstimate | None:
    """Means over the epochs that were finished; None where there is none."""
    whole = {int(row["epoch"]) for row in run.epochs}
    steps = [row for row in run.steps if int(row["epoch"]) in whole]
    finished = [time for time in times if time.epoch in whole]
    batch_size = (run.config.get("data") or {}).get("batch_size")
    if not steps or not finished or not batch_size:
        return None
    took = [float(row["step_seconds"]) for row in steps]
    waits = [float(row["data_wait_seconds"]) for row in steps]
    epochs = len(finished)
    batches = sum(int(row["samples"]) for row in steps) / epochs / batch_size
    usual, usual_wait = median(took), median(waits)
    actual = fmean(time.seconds for time in finished)
    between = {part: sum(time.parts.get(part, 0.0) for time in finished) / epochs for part in _BETWEEN}
    reasons = {
        "longer waits for data": sum(waits) / epochs - batches * usual_wait,
        "slower steps": (sum(took) - sum(waits)) / epochs - batches * (usual - usual_wait),
        **between,
        "between steps": actual - sum(took) / epochs - sum(between.values()),
    }
    return EpochEstimate(batches, usual, batches * usual, actual, reasons)
