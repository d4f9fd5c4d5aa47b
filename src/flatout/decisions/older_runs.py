"""What a run that wrote no decisions down most likely had: the same rules, over its recipe as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.config.tasks import spec_of
from flatout.decisions.batches import BatchChoice
from flatout.decisions.caching import OFF, StageChoice
from flatout.decisions.choice import AUTO, Choice
from flatout.decisions.compute import choose_log_interval, choose_threads, queues_work
from flatout.decisions.loading import DataDecisions, choose_fetchers, choose_workers, is_url, remote_choice
from flatout.decisions.resolved import MonitorDecisions, ParallelDecisions, Resolved, TrainDecisions

_ASSUMED = "assumed: the run did not write it down"


def assume(config: Mapping[str, Any], device_kind: str, cores: int, world_size: int, seen_workers: int = 0) -> Resolved:
    """`config` is a run's config.yaml as read, of any version or program; `seen_workers` are those in its spans."""
    data, train = section(config, "data"), section(config, "train")
    return Resolved(
        Choice(device_kind, _ASSUMED, config.get("device")),
        choose_threads(_number_or_open(config.get("threads")), device_kind, cores),
        _batch(config.get("task"), data, world_size),
        _data(data, device_kind, cores, seen_workers),
        TrainDecisions(
            Choice(str(train.get("precision") or "fp32"), _ASSUMED, train.get("precision")),
            choose_log_interval(_number_or_open(train.get("log_every")), queues_work(device_kind)),
            Choice({"name": train.get("optimizer")}, _ASSUMED),
        ),
        ParallelDecisions(Choice(None, _ASSUMED)),
        MonitorDecisions(Choice(None, _ASSUMED)),
    )


def _data(data: Mapping[str, Any], device_kind: str, cores: int, seen_workers: int) -> DataDecisions:
    wanted = _number_or_open(data.get("workers"))
    workers = choose_workers(wanted, cores, device_kind)
    if workers.was_open and seen_workers:
        workers = Choice(seen_workers, "so many are in its spans", wanted)
    remote, count = is_url(str(data.get("path") or "")), workers.value
    kind = "process" if data.get("worker_kind") == "process" else "thread"
    fetchers = choose_fetchers(kind if count else "inline", remote)
    prefetch = data.get("prefetch")
    ahead = prefetch if isinstance(prefetch, int) else max(1, 2 * count + fetchers.value)
    is_staged = remote and data.get("stage") != OFF and kind != "process"
    return DataDecisions(
        remote_choice(remote),
        Choice(kind, _ASSUMED, data.get("worker_kind")),
        workers,
        Choice(count, _ASSUMED),
        fetchers,
        Choice(ahead, _ASSUMED, prefetch),
        Choice(None, _ASSUMED),
        StageChoice("disk" if is_staged else OFF, _ASSUMED, str(data.get("stage")), remote),
        None,
        Choice(str(data.get("shared") or OFF), _ASSUMED, data.get("shared")),
        Choice(None, _ASSUMED),
    )


def _batch(task: Any, data: Mapping[str, Any], world_size: int) -> BatchChoice:
    if spec_of(task).batch_unit == "tokens":
        tokens = _whole(data.get("batch_tokens"))
        return BatchChoice(tokens * world_size, "tokens", "batch_tokens", _ASSUMED, tokens)
    if data.get("global_batch") is not None:
        size = _whole(data["global_batch"])
        return BatchChoice(size, "samples", "global_batch", _ASSUMED, size / world_size)
    size = _whole(data.get("batch_size"))
    return BatchChoice(size * world_size, "samples", "batch_size", _ASSUMED, size)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _number_or_open(value: Any) -> int | str:
    return value if isinstance(value, int) else AUTO


def section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Of a run's file as read, of whatever version; empty where there is none."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
