"""From a run's files to Signals. Tolerant: what is missing, torn or of a newer kind is None, never an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.analysis.rank_spans import RankSpans, read_rank_spans
from flatout.cost.catalogue import DEFAULT_REGION, load_catalogue
from flatout.decisions import Resolved
from flatout.decisions.document import most_of, read_decisions
from flatout.decisions.older_runs import assume, section
from flatout.diagnosis.script_signals import read_script
from flatout.diagnosis.signal_groups import (
    CostSignals,
    DeviceSignals,
    Epoch,
    HostRow,
    HostSignals,
    InputSignals,
    LearningSignals,
    RankSignals,
    RecipeSignals,
    SharedBatches,
    StepSignals,
    StoreRequests,
    TimeSignals,
)
from flatout.diagnosis.signals import Signals
from flatout.errors import UserError
from flatout.runs import Run, RunDirectory
from flatout.runs.directory import read_json
from flatout.runs.reading import read_link
from flatout.runs.steps import StepRow, parse_float
from flatout.untrusted import number

_BEFORE_EXCHANGE = ("data_wait", "copy", "forward", "backward")


def read_signals(run: Run) -> Signals:
    """Everything the run's directory says that a rule may want to know."""
    directory = RunDirectory(run.directory)
    spans = [read_rank_spans(directory.rank_spans(rank)) for rank in range(_world_size(run))]
    steps = tuple(step for step in run.steps if step.seconds > 0)
    epochs = tuple(map(_epoch, run.epochs))
    kind = section(run.environment, "device").get("kind") or run.config.get("device") or "cpu"
    document = read_json(run.directory / "resolved.json")
    decided = read_decisions(document, assume(run.config, kind, _cores(run), _world_size(run), spans[0].workers))
    data = _input(run, document, decided, steps, epochs, spans[0])
    return Signals(
        time=_time(run, epochs, spans[0]),
        steps=steps,
        status=run.status,
        cause=run.summary.get("cause"),
        recipe=_recipe(run, decided, steps),
        input=data,
        device=_device(run, kind),
        host=_host(run, decided),
        learning=_learning(run, epochs),
        cost=_cost(run),
        ranks=_ranks(run, spans, StepSignals(steps, data.fills_cache).seconds),
        script=read_script(run.summary),
    )


def _learning(run: Run, epochs: tuple[Epoch, ...]) -> LearningSignals:
    splits = section(section(run.summary, "data"), "splits")
    train, val = (section(splits, name).get("samples") for name in ("train", "val"))
    view = section(section(run.config, "views"), str(section(run.config, "data").get("view")))
    smoothing = section(run.config, "train").get("label_smoothing") or 0.0
    mixes = any(view.get(name) for name in ("mixup", "cutmix", "trivial_augment"))
    return LearningSignals(epochs, _classes(run), train, val, smoothing, mixes)


def _world_size(run: Run) -> int:
    return int(run.summary.get("world_size") or 1)


def _time(run: Run, epochs: Sequence[Epoch], spans: RankSpans) -> TimeSignals:
    time = section(run.summary, "time")
    return TimeSignals(
        wall_seconds=time.get("wall_seconds") or 0.0,
        parts=time.get("parts") or {},
        import_seconds=time.get("import_seconds"),
        core_wait=spans.core_wait,
        startup_parts=time.get("startup_parts") or {},
        validations=sum(epoch.val_loss is not None for epoch in epochs),
        validation_spans=spans.validations,
        checkpoints=spans.checkpoints,
        checkpoint_bytes=_checkpoint_bytes(section(run.summary, "checkpoint")),
    )


def _checkpoint_bytes(kept: Mapping[str, Any]) -> float | None:
    return kept["bytes"] / kept["files"] if kept.get("files") and kept.get("bytes") else None


def _recipe(run: Run, decided: Resolved, steps: Sequence[StepRow]) -> RecipeSignals:
    """Where batches are cut by tokens, the number of samples is what they had on average."""
    train, batch, tokens = section(run.config, "train"), max(1, round(decided.batch.per_rank)), None
    if decided.batch.unit == "tokens":
        tokens = batch if steps else None
        batch = max(1, round(sum(step.samples for step in steps) / len(steps))) if steps else 1
    return RecipeSignals(
        batch_size=batch,
        batch_tokens=tokens,
        global_batch=section(run.config, "data").get("global_batch"),
        epochs=train.get("epochs") or 1,
        checkpointing=bool(train.get("checkpointing")),
        accumulate=train.get("accumulate") or 1,
        log_every=decided.train.log_every.value,
        validate_every=section(run.config, "validate").get("every_epochs") or 1,
        checkpoint_every_steps=section(run.config, "checkpoint").get("every_steps"),
        checkpoint_every_epochs=section(run.config, "checkpoint").get("every_epochs") or 1,
    )


def _cores(run: Run) -> int:
    return int(section(run.environment, "cpu").get("cores_usable") or 1)


def _input(
    run: Run,
    document: Mapping[str, Any],
    decided: Resolved,
    steps: Sequence[StepRow],
    epochs: Sequence[Epoch],
    spans: RankSpans,
) -> InputSignals:
    data, found, loading = section(run.config, "data"), section(run.summary, "data"), decided.data
    return InputSignals(
        workers=most_of("data.workers", document, decided),
        worker_kind="process" if loading.worker_kind.value == "process" else "thread",
        fetchers=loading.fetchers.value,
        prefetch=max(1, most_of("data.prefetch", document, decided)),
        remote=loading.remote.value,
        staged=loading.stage.value != "off",
        cache=data.get("cache") or "off",
        cache_choice=loading.cache,
        python_augment=_colours_in_python(run.config),
        samples_loaded=_samples_loaded(run.summary, steps, epochs),
        fetch_seconds=found.get("fetch_seconds"),
        decode_seconds=found.get("decode_seconds"),
        augment_seconds=found.get("augment_seconds"),
        bytes_read=found.get("bytes_read"),
        cache_hits=found.get("cache_hits"),
        cache_misses=found.get("cache_misses"),
        loads=spans.loads,
        store=_store(found),
        shared=_shared(section(run.summary, "shared")),
    )


def _colours_in_python(config: Mapping[str, Any]) -> bool:
    view = section(section(config, "views"), str(section(config, "data").get("view")))
    return bool(view.get("trivial_augment") or any(view.get("colour_jitter") or ()))


def _epoch(row: Mapping[str, str]) -> Epoch:
    """A loss that is not finite tells that a run diverged."""
    return Epoch(
        int(row["epoch"]), parse_float(row.get("train_loss")), parse_float(row.get("val_loss")), number(row.get("top1"))
    )


def _classes(run: Run) -> int | None:
    counted = section(run.summary, "data").get("classes")
    if isinstance(counted, int):
        return counted
    wanted = section(run.config, "data").get("classes")
    return len(wanted) if isinstance(wanted, list) else wanted if isinstance(wanted, int) else None


def _samples_loaded(summary: Mapping[str, Any], steps: Sequence[StepRow], epochs: Sequence[Epoch]) -> int | None:
    """Training samples, and those of every validation: the loader's totals are over both."""
    seen = summary.get("samples_seen")
    total = section(summary, "data").get("samples_total")
    if not seen:
        return None
    whole: dict[int, int] = {}
    for step in steps:
        whole[step.epoch] = whole.get(step.epoch, 0) + step.samples
    held_out = max(0, total - max(whole.values())) if total and whole and len(epochs) >= 1 else 0
    return int(seen + held_out * sum(epoch.val_loss is not None for epoch in epochs))


def _cost(run: Run) -> CostSignals:
    cost = section(run.config, "cost")
    total = section(run.summary, "cost").get("total_usd")
    wall = section(run.summary, "time").get("wall_seconds")
    return CostSignals(
        usd_per_hour=total / wall * 3600 if total is not None and wall else None,
        spot_usd_per_hour=_spot_usd_per_hour(cost),
        spot=bool(cost.get("spot")),
    )


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


def _store(data: Mapping[str, Any]) -> StoreRequests | None:
    requests = data.get("store_requests")
    if not requests:
        return None
    return StoreRequests(
        requests=requests,
        retries=data.get("store_retries"),
        throttles=data.get("store_throttles"),
        request_seconds_p50=data.get("store_request_seconds_p50"),
        request_seconds_p99=data.get("store_request_seconds_p99"),
        request_seconds_p05=data.get("store_request_seconds_p05"),
    )


def _shared(use: Mapping[str, Any]) -> SharedBatches | None:
    if not use.get("hits"):
        return None
    known = {name: value or 0 for name, value in use.items()}
    return SharedBatches(
        batches=known["hits"] + known.get("local", 0) + known.get("alone", 0),
        local=known.get("local", 0),
        answers=known.get("asks", 0),
        busy_answers=known.get("busy_answers", 0),
        made=known.get("service_made", 0),
        evicted_needed=known.get("service_evicted_needed", 0),
        cold_starts=known.get("service_cold_starts", 0),
    )


def _device(run: Run, kind: str) -> DeviceSignals:
    """Of the first GPU, where there are several."""
    use, emulated = section(run.summary, "device_use"), section(run.config, "emulated") if kind == "emulated" else {}
    gpus = section(run.summary, "host").get("gpus")
    gpu = gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], Mapping) else {}
    most_mhz = gpu.get("sm_clock_max_mhz")
    return DeviceSignals(
        kind=kind,
        memory_peak_bytes=use.get("memory_peak_bytes"),
        memory_total_bytes=_memory_bytes(run) if kind == "cpu" else gpu.get("memory_bytes"),
        emulated_base_seconds=emulated.get("base_seconds"),
        emulated_seconds_per_sample=emulated.get("seconds_per_sample"),
        clock_share=tuple(mhz / most_mhz for mhz in _column(run.system, "gpu0_sm_clock_mhz")) if most_mhz else (),
        celsius=_column(run.system, "gpu0_temperature_celsius"),
    )


def _memory_bytes(run: Run) -> float | None:
    """Of the machine, or as much of it as a container's limit leaves this run."""
    host = section(run.summary, "host")
    known = [each for each in (host.get("memory_total_bytes"), host.get("memory_limit_bytes")) if each]
    return min(known) if known else run.environment.get("memory_bytes")


def _host_rows(run: Run) -> tuple[HostRow, ...]:
    """Those that have a past, and so a length."""
    rows = []
    for row in run.system:
        if seconds := number(row.get("interval_seconds")):
            names = ("cpu", "process_cores", "process_waiting_cores", "cpu_throttled_seconds", "cpu_steal")
            cpu, used, waiting, throttled, steal = (number(row.get(name)) for name in names)
            held = None if throttled is None else throttled / seconds
            rows.append(HostRow(seconds, cpu, used, waiting, held, steal))
    return tuple(rows)


def _host(run: Run, decided: Resolved) -> HostSignals:
    disks = [name for name in (run.system[0] if run.system else {}) if name.startswith("disk_")]
    return HostSignals(
        cores=_cores(run),
        machine_cores=int(section(run.summary, "host").get("cores") or _cores(run)),
        quota_cores=section(run.summary, "host").get("cpu_limit_cores"),
        rows=_host_rows(run),
        threads=decided.threads.value,
        memory_total_bytes=run.environment.get("memory_bytes"),
        seconds=_column(run.system, "time_unix", "seconds"),
        cpu_share=_column(run.system, "cpu"),
        process_cores=_column(run.system, "process_cores"),
        resident_bytes=_column(run.system, "rss_private_bytes", "rss_bytes"),
        available_bytes=_column(run.system, "memory_free_bytes"),
        disk_read_bytes_per_second=_column(
            run.system, *(name for name in disks if name.endswith("_read_bytes")), per="interval_seconds"
        ),
        disk_busy_share=_column(run.system, *(name for name in disks if name.endswith("_busy"))),
    )


def _column(rows: Sequence[Mapping[str, str]], *names: str, per: str | None = None) -> tuple[float, ...]:
    """The first of these columns that holds numbers; `per` names one to divide by."""
    for name in names:
        pairs = [(number(row.get(name)), number(row.get(per)) if per else 1.0) for row in rows]
        values = tuple(value / by for value, by in pairs if value is not None and by)
        if values:
            return values
    return ()


def _ranks(run: Run, spans: Sequence[RankSpans], step_seconds: float) -> RankSignals | None:
    """Per rank from its spans: what it does itself before it waits for the others."""
    if len(spans) < 2:
        return None
    network, link = section(run.summary, "network"), read_link(RunDirectory(run.directory))
    predicted = section(link, "predicted")
    steps = max(1, len(run.steps))
    waits = [each.parts["communication"] / steps for each in spans if each.parts]
    before = (*_BEFORE_EXCHANGE, "other") if "recorded" in run.summary else _BEFORE_EXCHANGE  # a script's own code
    own = tuple(sum(each.parts.get(name, 0.0) for name in before) / steps for each in spans if each.parts)
    return RankSignals(
        world_size=len(spans),
        nodes=len(link.get("nodes") or ()) or 1,
        gradient_bytes=predicted.get("gradient_bytes"),
        buckets=tuple((each["bytes"], each["ready_seconds"]) for each in predicted.get("buckets") or ()),
        latency_seconds=link.get("latency_seconds") or 0.0,
        # the last to arrive waits for the network alone; exchanges before the first step are no step's
        communication_seconds=min([*waits, step_seconds]) if waits else None,
        arrival_seconds=own if len(own) == len(spans) else (),
        backend=link.get("backend"),
        interface=link.get("interface") or network.get("interface"),
        link_bits_per_second=link.get("bits_per_second") or network.get("link_bits_per_second"),
        cap_bits_per_second=link.get("cap_bits_per_second"),
        peak_bits_per_second=network.get("peak_bits_per_second"),
    )
