"""From a run's files to Signals. Tolerant: what is missing, torn or of a newer kind is None, never an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.cost.catalogue import DEFAULT_REGION, load_catalogue
from flatout.decisions.batches import BatchChoice
from flatout.decisions.document import most_of, read_decisions
from flatout.decisions.older_runs import assume
from flatout.diagnosis.signals import BatchLoad, Epoch, Ranks, Shared, Signals, Step, Store, System
from flatout.errors import UserError
from flatout.runs import Run
from flatout.runs.directory import read_json, read_table
from flatout.untrusted import number as _number
from flatout.untrusted import read_json_lines

_BEFORE_EXCHANGE = ("data_wait", "copy", "forward", "backward")
_LOADS = ("fetch", "decode", "augment", "collate")


def read_signals(run: Run) -> Signals:
    """Everything the run's directory says that a rule may want to know."""
    summary, config = run.summary, run.config
    data, time = _section(summary, "data"), _section(summary, "time")
    lanes, seen_workers = _lanes(run.directory)
    steps = tuple(step for step in map(_step, run.steps) if step.seconds > 0)
    epochs = tuple(map(_epoch, run.epochs))
    return Signals(
        wall_seconds=time.get("wall_seconds") or 0.0,
        parts=time.get("parts") or {},
        status=run.status,
        cause=summary.get("cause"),
        steps=steps,
        epochs=epochs,
        classes=_classes(run),
        fetch_seconds=data.get("fetch_seconds"),
        decode_seconds=data.get("decode_seconds"),
        augment_seconds=data.get("augment_seconds"),
        bytes_read=data.get("bytes_read"),
        dataset_bytes=data.get("dataset_bytes"),
        cache_hits=data.get("cache_hits"),
        cache_misses=data.get("cache_misses"),
        samples_loaded=_samples_loaded(summary, steps, epochs),
        validations=sum(epoch.val_loss is not None for epoch in epochs),
        checkpoints=_span_count(run.directory, "checkpoint"),
        device_memory_peak_bytes=_section(summary, "device_use").get("memory_peak_bytes"),
        device_memory_total_bytes=_gpu(summary).get("memory_bytes"),
        flops_share=_section(summary, "device_use").get("flops_share"),
        import_seconds=time.get("import_seconds"),
        startup_parts=time.get("startup_parts") or {},
        usd_per_hour=_usd_per_hour(summary),
        spot_usd_per_hour=_spot_usd_per_hour(_section(config, "cost")),
        store=_store(data),
        shared=_shared(_section(summary, "shared")),
        system=_system(run.directory, _gpu(summary).get("sm_clock_max_mhz")),
        memory_total_bytes=run.environment.get("memory_bytes"),
        ranks=_ranks(run),
        **_settings(run, seen_workers, steps),
        **lanes,
    )


def _batch_sizes(batch: BatchChoice, steps: Sequence[Step]) -> dict[str, Any]:
    """Of one rank. Where batches are cut by tokens, the number of samples is what they had on average."""
    if batch.unit == "samples":
        return {"batch_size": max(1, round(batch.per_rank))}
    mean = sum(step.samples for step in steps) / len(steps) if steps else 1
    return {"batch_tokens": round(batch.per_rank) if steps else None, "batch_size": max(1, round(mean))}


def _settings(run: Run, seen_workers: int, steps: Sequence[Step]) -> dict[str, Any]:
    """What was decided for the run, by its resolved.json or, of an older run, by the same rules; and its recipe."""
    config, environment = run.config, run.environment
    data, train = _section(config, "data"), _section(config, "train")
    device = _section(environment, "device").get("kind") or config.get("device") or "cpu"
    cores = _section(environment, "cpu").get("cores_usable") or 1
    document, world_size = read_json(run.directory / "resolved.json"), run.summary.get("world_size") or 1
    decided = read_decisions(document, assume(config, device, cores, world_size, seen_workers))
    loading = decided.data
    emulated = _section(config, "emulated") if device == "emulated" else {}
    return {
        "device_kind": device,
        "cores": cores,
        "threads": decided.threads.value,
        **_batch_sizes(decided.batch, steps),
        "global_batch": data.get("global_batch"),
        "epochs_planned": train.get("epochs") or 1,
        "steps_planned": train.get("max_steps"),
        "workers": most_of("data.workers", document, decided),
        "worker_kind": "process" if loading.worker_kind.value == "process" else "thread",
        "fetchers": loading.fetchers.value,
        "prefetch": max(1, most_of("data.prefetch", document, decided)),
        "remote": loading.remote.value,
        "staged": loading.stage.value != "off",
        "cache": data.get("cache") or "off",
        "cache_choice": loading.cache,
        "python_augment": _colours_in_python(config),
        "emulated_base_seconds": emulated.get("base_seconds"),
        "emulated_seconds_per_sample": emulated.get("seconds_per_sample"),
        "precision": decided.train.precision.value,
        "channels_last": bool(train.get("channels_last")),
        "compiled": bool(train.get("compile")),
        "checkpointing": bool(train.get("checkpointing")),
        "accumulate": train.get("accumulate") or 1,
        "log_every": decided.train.log_every.value,
        "validate_every": _section(config, "validate").get("every_epochs") or 1,
        "checkpoint_every_steps": _section(config, "checkpoint").get("every_steps"),
        "spot": bool(_section(config, "cost").get("spot")),
    }


def _colours_in_python(config: Mapping[str, Any]) -> bool:
    view = _section(_section(config, "views"), str(_section(config, "data").get("view")))
    return bool(view.get("trivial_augment") or any(view.get("colour_jitter") or ()))


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def _loss(text: Any) -> float | None:
    """A loss that is not finite tells that a run diverged."""
    with suppress(TypeError, ValueError):
        return float(text)
    return None


def _step(row: Mapping[str, str]) -> Step:
    """A log of another program may lack any of these."""
    return Step(
        _whole(row.get("epoch")), _whole(row.get("batch_index")), _whole(row.get("samples")),
        _number(row.get("step_seconds")) or 0.0, _number(row.get("data_wait_seconds")) or 0.0,
        _loss(row.get("loss")), _number(row.get("time_unix")), _number(row.get("cpu_seconds")),
    )  # fmt: skip


def _epoch(row: Mapping[str, str]) -> Epoch:
    return Epoch(
        _whole(row.get("epoch")), _loss(row.get("train_loss")), _loss(row.get("val_loss")), _number(row.get("top1"))
    )


def _whole(text: Any) -> int:
    return int(_number(text) or 0)


def _classes(run: Run) -> int | None:
    counted = _section(run.summary, "data").get("classes")
    if isinstance(counted, int):
        return counted
    wanted = _section(run.config, "data").get("classes")
    return len(wanted) if isinstance(wanted, list) else wanted if isinstance(wanted, int) else None


def _samples_loaded(summary: Mapping[str, Any], steps: Sequence[Step], epochs: Sequence[Epoch]) -> int | None:
    """Training samples, and those of every validation: the loader's totals are over both."""
    seen = summary.get("samples_seen")
    total = _section(summary, "data").get("samples_total")
    if not seen:
        return None
    whole: dict[int, int] = {}
    for step in steps:
        whole[step.epoch] = whole.get(step.epoch, 0) + step.samples
    held_out = max(0, total - max(whole.values())) if total and whole and len(epochs) >= 1 else 0
    return int(seen + held_out * sum(epoch.val_loss is not None for epoch in epochs))


def _usd_per_hour(summary: Mapping[str, Any]) -> float | None:
    total = _section(summary, "cost").get("total_usd")
    wall = _section(summary, "time").get("wall_seconds")
    return total / wall * 3600 if total is not None and wall else None


def _spot_usd_per_hour(cost: Mapping[str, Any]) -> float | None:
    """Of all machines of the run, where the catalogue knows the price."""
    instance, count = cost.get("instance"), cost.get("count") or 1
    if not instance:
        return None
    try:
        catalogue = load_catalogue(Path(cost["prices"]) if cost.get("prices") else None)
    except UserError:  # the price file is not here any more
        return None
    price = catalogue.find("instances", instance, "spot_usd_per_hour", cost.get("region") or DEFAULT_REGION)
    return None if price is None else price.value * count


def _store(data: Mapping[str, Any]) -> Store | None:
    requests = data.get("store_requests")
    if not requests:
        return None
    return Store(
        requests, data.get("store_retries"), data.get("store_throttles"), data.get("store_request_seconds_p50"),
        data.get("store_request_seconds_p99"), data.get("store_request_seconds_p05"),
    )  # fmt: skip


def _shared(use: Mapping[str, Any]) -> Shared | None:
    if not use.get("hits"):
        return None
    return Shared(
        use["hits"] + use.get("local", 0) + use.get("alone", 0), use.get("local", 0), use.get("asks", 0),
        use.get("busy_answers", 0), use.get("service_made", 0), use.get("service_evicted_needed", 0),
        use.get("service_cold_starts", 0),
    )  # fmt: skip


# Lanes


def _spans(path: Path) -> Iterable[dict[str, Any]]:
    return filter(_is_span, read_json_lines(path))


def _is_span(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key, ""), str) for key in ("lane", "name")) and all(
        isinstance(row.get(key, 0), int | float) for key in ("step", "start", "seconds", "own", "value", "attempt")
    )


def _span_count(directory: Path, name: str) -> int:
    return sum(row.get("name") == name and "lane" not in row for row in _spans(directory / "spans" / "rank0.jsonl"))


def _lanes(directory: Path) -> tuple[dict[str, Any], int]:
    """What was done for each batch, how many were ready, how many workers there were. A later attempt's word counts."""
    loads: dict[int, dict[str, float]] = {}
    workers: set[str] = set()
    attempt: dict[int, dict[str, float]] = {}
    depths: list[float] = []
    for row in _spans(directory / "spans" / "rank0.jsonl"):
        lane, name = row.get("lane"), row.get("name")
        if "attempt" in row:
            loads.update(attempt)
            attempt = {}
        elif lane == "queue" and name == "depth":
            depths.append(float(row.get("value") or 0.0))
        elif lane is not None and name in _LOADS and isinstance(row.get("step"), int):
            workers |= {lane} if lane.startswith("worker") else set()
            stages = attempt.setdefault(row["step"] + 1, {})  # taken after that step, for the next
            stages[name] = stages.get(name, 0.0) + float(row.get("seconds") or 0.0)
    loads.update(attempt)
    batches = tuple(
        BatchLoad(step, *(stages.get(name, 0.0) for name in _LOADS)) for step, stages in sorted(loads.items())
    )
    return {"loads": batches, "queue_depths": tuple(depths)}, len(workers)


# Monitors


def _gpu(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the first GPU says of itself; empty without one."""
    gpus = _section(summary, "host").get("gpus")
    return gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], Mapping) else {}


def _system(directory: Path, most_mhz: float | None) -> System:
    rows = read_table(directory / "system.csv")

    def column(*names: str, per: str | None = None) -> tuple[float, ...]:
        """The first of these columns that holds numbers; `per` names one to divide by."""
        for name in names:
            pairs = [(_number(row.get(name)), _number(row.get(per)) if per else 1.0) for row in rows]
            values = tuple(value / by for value, by in pairs if value is not None and by and math.isfinite(value))
            if values:
                return values
        return ()

    def matching(prefix: str, suffix: str) -> list[str]:
        return [name for name in (rows[0] if rows else {}) if name.startswith(prefix) and name.endswith(suffix)]

    return System(
        seconds=column("time_unix", "seconds"),
        cpu_share=column("cpu"),
        process_cores=column("process_cores"),
        resident_bytes=column("rss_private_bytes", "rss_bytes"),
        available_bytes=column("memory_free_bytes"),
        disk_read_bytes_per_second=column(*matching("disk_", "_read_bytes"), per="interval_seconds"),
        disk_busy_share=column(*matching("disk_", "_busy")),
        device_busy_share=column("gpu0_utilization"),
        device_clock_share=tuple(mhz / most_mhz for mhz in column("gpu0_sm_clock_mhz")) if most_mhz else (),
        device_celsius=column("gpu0_temperature_celsius"),
    )


def _ranks(run: Run) -> Ranks | None:
    """Per rank from its spans: what it does itself before it waits for the others."""
    world = run.summary.get("world_size") or 1
    if world < 2:
        return None
    network, link = _section(run.summary, "network"), read_json(run.directory / "link.json")
    predicted = _section(link, "predicted")
    steps = max(1, len(run.steps))
    parts = [_part_seconds(run.directory / "spans" / f"rank{rank}.jsonl") for rank in range(world)]
    waits = [each["communication"] / steps for each in parts if each]
    own = tuple(sum(each.get(name, 0.0) for name in _BEFORE_EXCHANGE) / steps for each in parts if each)
    return Ranks(
        world_size=world,
        nodes=len(link.get("nodes") or ()) or 1,
        mode=str(_section(run.config, "parallel").get("mode") or "ddp"),
        gradient_bytes=predicted.get("gradient_bytes"),
        buckets=tuple((each["bytes"], each["ready_seconds"]) for each in predicted.get("buckets") or ()),
        latency_seconds=link.get("latency_seconds") or 0.0,
        communication_seconds=min(waits) if waits else None,  # the last to arrive waits for the network alone
        arrival_seconds=own if len(own) == world else (),
        backend=link.get("backend"),
        interface=link.get("interface") or network.get("interface"),
        link_bits_per_second=link.get("bits_per_second") or network.get("link_bits_per_second"),
        cap_bits_per_second=link.get("cap_bits_per_second"),
        peak_bits_per_second=network.get("peak_bits_per_second"),
    )


def _part_seconds(path: Path) -> dict[str, float]:
    """Exclusive seconds of every part of one rank's last attempt; empty where it left no file."""
    parts: dict[str, float] = {}
    for row in _spans(path):
        if "attempt" in row:
            parts = {"communication": 0.0}
        elif "lane" not in row and parts:
            parts[row.get("name", "")] = parts.get(row.get("name", ""), 0.0) + float(row.get("own") or 0.0)
    return parts
