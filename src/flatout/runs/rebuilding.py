"""The summary of a run whose process was killed, from the files it left: up to the last finished span and step."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.config.tasks import best_metric
from flatout.runs.directory import RunDirectory
from flatout.runs.steps import StepRow
from flatout.runs.summary import accuracy, add_parts, throughput
from flatout.runs.tables import read_table
from flatout.timeline.reading import read_attempts

KILLED = (
    "the process ended without a word (killed, out of memory, or the machine went down); "
    "the same train command resumes from the newest checkpoint"
)


def rebuild_summary(
    directory: RunDirectory,
    before: Mapping[str, Any],
    config: Mapping[str, Any],
    steps: Sequence[StepRow],
    epochs: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """What the last summary said, with everything that the other files know better. `steps` and `epochs` are the rows
    that count. `cost` is None: what the run last wrote down leaves out the time up to the kill (cost/killed_run.py)."""
    samples = [row.samples for row in steps]
    attempts = read_attempts(directory.rank_spans())
    metric = best_metric(config)
    parts = add_parts([each.parts for each in attempts])
    wall_seconds = sum(each.wall_seconds for each in attempts)
    return {
        **before,
        "run": before.get("run") or config.get("name") or directory.root.name,
        "status": "failed",
        "cause": KILLED,
        "attempts": max(int(before.get("attempts") or 0), len(attempts)),
        "samples_seen": sum(samples),
        "accuracy": {
            **(before.get("accuracy") or {}),
            **accuracy(epochs, metric.name, metric.higher_is_better),
        },
        "throughput": throughput([row.seconds for row in steps], samples),
        "time": {**(before.get("time") or {}), **({"wall_seconds": wall_seconds, "parts": parts} if attempts else {})},
        "data": {**(before.get("data") or {}), "quarantined": len(read_table(directory.quarantine))},
        "checkpoint": {**checkpoint_files(directory), "seconds": parts.get("checkpoint", 0.0)},
        "cost": None,
    }


def checkpoint_files(directory: RunDirectory) -> dict[str, int]:
    """How many there are, and their bytes."""
    files = [path for path in directory.checkpoints.glob("step-*.safetensors") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
