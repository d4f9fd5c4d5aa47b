"""From what was told to the run's config.yaml and summary.json."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.recording.told import RankTold, RowTotals
from flatout.runs.summary import add_parts, busy_fraction
from flatout.timeline import PARTS
from flatout.timeline.reading import AttemptStart, read_attempts, read_spans

_STAGES = ("fetch", "decode", "augment", "collate")


def describe_config(name: str, cost: Mapping[str, Any], ranks: Sequence[RankTold]) -> dict[str, Any]:
    """What of the script fits a recipe, so that rules and predictions know its batch, its workers and its device."""
    config: dict[str, Any] = {"name": name}
    if ranks and ranks[0].steps:
        first, loader = ranks[0], ranks[0].training_loader
        workers = int(loader.get("num_workers") or 0)
        micro = max(1, round(first.microbatches / first.steps))
        batch = max(1, round(first.samples / first.steps))
        device = (first.process.get("device") or {}).get("kind") or "cpu"
        config |= {
            "device": device,
            "threads": first.process.get("threads") or "auto",
            "data": {"batch_size": batch, "workers": workers, "cache": "off", "stage": "off"},
            "train": {"epochs": first.last_epoch + 1, "accumulate": micro},
        }
        if workers:  # without any, a recipe has neither
            ahead = workers * int(loader.get("prefetch_factor") or 2)
            config["data"] |= {"worker_kind": "process", "prefetch": ahead}
        if len(ranks) > 1:
            config["parallel"] = {"mode": "ddp", "devices": len(ranks)}
    if cost:
        config["cost"] = dict(cost)
    return config


def whole_parts(
    run: Path, rank: int, began_unix: float, wall_seconds: float, after: str | None
) -> tuple[dict[str, float], float]:
    """Exclusive seconds of every part, adding up to the wall clock of the command, and what of it came after the last
    span: that is `after`, or nobody's where that is None. What came before the process is its start."""
    attempts = read_attempts(run / "spans" / f"rank{rank}.jsonl")
    parts = dict.fromkeys(PARTS, 0.0) | add_parts([each.parts for each in attempts])
    if not attempts:
        parts[after if after in PARTS else "startup"] = wall_seconds
        return parts, 0.0
    parts["startup"] += max(0.0, attempts[0].started_unix - began_unix)
    left = wall_seconds - sum(parts.values())
    parts[after if after in PARTS else "unattributed"] += max(0.0, left)
    if left < 0:  # spans are of another clock, to a few milliseconds
        longest = max(parts, key=lambda name: parts[name])
        parts[longest] += left
    return parts, max(0.0, left)


def loading_totals(run: Path) -> dict[str, float]:
    """Seconds of each stage of preparing batches for training, of rank 0's loaders."""
    totals = dict.fromkeys(_STAGES, 0.0)
    for row in read_spans(run / "spans" / "rank0.jsonl"):
        if not isinstance(row, AttemptStart) and row.lane and row.value is None and row.name in totals:
            totals[row.name] += row.seconds
    return {f"{name}_seconds": seconds for name, seconds in totals.items()}


def summarise(
    name: str,
    status: str,
    cause: str | None,
    ranks: Sequence[RankTold],
    totals: RowTotals,
    parts: Mapping[str, float],
    wall_seconds: float,
    recorded: Mapping[str, Any],
) -> dict[str, Any]:
    """summary.json without what the monitors and the prices say."""
    first = ranks[0] if ranks else RankTold()
    loader, device = first.training_loader, first.process.get("device") or {}
    imports = float(first.process.get("import_seconds") or 0.0)
    startup = {
        "imports": imports,
        "other": max(0.0, parts.get("startup", 0.0) - imports),
        "first_batch": totals.first_wait_seconds,
    }
    return {
        "run": name,
        "status": status,
        "cause": cause,
        "updated_unix": time.time(),
        "device": {"name": device.get("name") or device.get("kind"), "emulated": False, "count": max(1, len(ranks))},
        "world_size": max(1, len(ranks)),
        "config_digest": None,
        "data_fingerprint": None,
        "state_digest": None,
        "attempts": max(1, first.attempts),
        "samples_seen": totals.samples,
        "convergence": {"verdict": None, "why": None},
        "throughput": totals.throughput(),
        "time": {
            "wall_seconds": wall_seconds,
            "parts": dict(parts),
            "import_seconds": imports,
            "startup_parts": startup,
        },
        "data": {"samples_total": loader.get("samples"), "bytes_read": None},
        "device_use": {"busy_fraction": busy_fraction(parts, wall_seconds)},
        "checkpoint": {"files": None, "bytes": None, "seconds": parts.get("checkpoint")},
        "recorded": dict(recorded),
    }
