"""What the files of a run directory must look like for its readers: names that are there have these types.

Unknown names and missing ones pass, so that runs of older and newer versions can be read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flatout.config.schema import Config
from flatout.errors import BadFile
from flatout.runs.steps import parse_amount, parse_count, parse_float
from flatout.untrusted import check_shape, shortened

_COST = {
    "total_usd": "amount",
    "prices_dated": "text",
    "unpriced": ["text"],
    "lines": [{"name": "text", "quantity": "amount", "unit": "text", "unit_price_usd": "amount", "usd": "amount"}],
}
_COST_LINE = ("name", "quantity", "unit", "unit_price_usd", "usd")
_SPLIT = ("samples", "bytes")
_DATA = dict.fromkeys(
    (
        "samples_total",
        "dataset_bytes",
        "bytes_read",
        "fetch_seconds",
        "decode_seconds",
        "augment_seconds",
        "collate_seconds",
        "cache_hits",
        "cache_misses",
        "store_requests",
        "store_bytes",
        "store_retries",
        "store_throttles",
        "store_request_seconds_p50",
        "store_request_seconds_p99",
        "store_request_seconds_p05",
        "quarantined",
        "stage_seconds",
        "staged_bytes",
    ),
    "amount",
)
_SHARED = dict.fromkeys(
    (
        "hits",
        "local",
        "alone",
        "written_back",
        "asks",
        "most_asks_per_batch",
        "busy_answers",
        "wait_seconds",
        "bytes",
        "spoilt",
        "outages",
        "rejoined",
        "connected_seconds",
        "share_seconds",
        "share_byte_seconds",
        "share_gb_seconds",
        "share_requests",
        "service_made",
        "service_evicted_needed",
        "service_cold_starts",
    ),
    "amount",
)
SUMMARY = {
    "run": "text",
    "task": "text",
    "status": "text",
    "cause": "text",
    "config_digest": "text",
    "data_fingerprint": "text",
    "data_fingerprint_by": "text",
    "data_names_fingerprint": "text",
    "data_changes": ["text"],
    "state_digest": "text",
    "updated_unix": "amount",
    "world_size": "count",
    "attempts": "count",
    "samples_seen": "count",
    "total_steps": "count",
    "device": {"name": "text", "emulated": "flag", "count": "count"},
    "accuracy": {
        "top1": "amount",
        "top5": "amount",
        "bleu": "amount",
        "val_loss": "number",
        "train_loss": "number",
        "best_epoch": "count",
    },
    "convergence": {
        "verdict": "text",
        "why": "text",
        "alarms": ["text"],
        "overfitting": "flag",
        "overfitting_why": "text",
    },
    "learning_rate": {"schedule": "text"},
    "optimizer": {"name": "text", "groups": [{}]},
    "throughput": {"samples_per_second": "amount", "steps_per_second": "amount", "step_seconds": "amounts"},
    "time": {"wall_seconds": "amount", "parts": "amounts", "import_seconds": "amount", "startup_parts": "amounts"},
    "data": {**_DATA, "classes": "count", "splits": {"train": "amounts", "val": "amounts"}},
    "shared": _SHARED,
    "device_use": dict.fromkeys(
        ("busy_fraction", "utilization_mean", "memory_peak_bytes", "power_watts_mean", "temperature_max_celsius"),
        "amount",
    ),
    "network": {
        **dict.fromkeys(("bytes_sent", "bytes_received", "peak_bits_per_second", "link_bits_per_second"), "amount"),
        "interface": "text",
    },
    "host": {
        **dict.fromkeys(
            (
                "cores",
                "cpu_limit_cores",
                "cpu_mean",
                "cpu_max_core",
                "cpu_iowait_mean",
                "cpu_steal_mean",
                "cpu_throttled_seconds",
                "process_cores_mean",
                "rss_peak_bytes",
                "memory_total_bytes",
                "memory_limit_bytes",
                "memory_free_min_bytes",
                "swap_peak_bytes",
                "shm_total_bytes",
                "shm_peak_bytes",
            ),
            "amount",
        ),
        "disks": {"data": {"device": "text"}, "run": {"device": "text"}},
        "gpus": [{}],
    },
    "checkpoint": {"files": "count", "bytes": "count", "seconds": "amount"},
    "cost": _COST,
}
ENVIRONMENT = {"device": {"kind": "text", "name": "text"}, "cpu": {"name": "text", "cores_usable": "count"}}
LINK = {
    "backend": "text",
    "interface": "text",
    "nodes": [{}],
    **dict.fromkeys(("latency_seconds", "bytes_per_second", "bits_per_second", "cap_bits_per_second"), "amount"),
    "predicted": {"gradient_bytes": "amount", "buckets": [{"bytes": "amount", "ready_seconds": "amount"}]},
}
_BUCKET = ("bytes", "ready_seconds")
_INTERVAL = {"value": "amount", "low": "amount", "high": "amount"}
PREDICTION = {
    "made_unix": "amount",
    "config_digest": "text",
    "changes": {},
    "step": _INTERVAL,
    "run": _INTERVAL,
    "epoch": _INTERVAL,
    "whole_epoch": _INTERVAL,
    "samples_per_second": _INTERVAL,
    "memory": _INTERVAL,
    "usd": _INTERVAL,
    "limit": "text",
}
_SECTIONS = {name for name, shape in SUMMARY.items() if isinstance(shape, dict)}

_EPOCH_KEYS = ("attempt", "epoch")
_EPOCH_COUNTS = (*_EPOCH_KEYS, "step", "samples")


def checked_summary(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Sections that are null are left out: there is nothing in them. (Those that may be are asked for so.)"""
    check_shape(values, SUMMARY, path)
    for section, names in (("cost", _COST_LINE), ("data", _SPLIT)):
        for part in _parts(values.get(section) or {}):
            if absent := [name for name in names if part.get(name) is None]:
                raise BadFile(f"cannot read {path}: {section} has a part without {absent[0]}: {shortened(part)}")
    return {
        name: value for name, value in values.items() if value is not None or name not in _SECTIONS - {"cost", "shared"}
    }


def checked_link(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """What was measured between the ranks; a bucket of gradients is whole, or damaged."""
    check_shape(values, LINK, path)
    for bucket in (values.get("predicted") or {}).get("buckets") or ():
        if bucket is None or any(bucket.get(name) is None for name in _BUCKET):
            raise BadFile(f"cannot read {path}: a bucket is {shortened(bucket)}, expected {' and '.join(_BUCKET)}")
    return values


def _parts(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The lines of a bill, or the sizes of the splits: each is whole, or damaged."""
    found = [*(section.get("lines") or ()), *(section.get("splits") or {}).values()]
    return [each for each in found if isinstance(each, Mapping)]


def check_config(values: Mapping[str, Any], path: Path) -> None:
    """Keys that this version knows have values that it would accept; an unknown key or word may be another's."""
    try:
        Config.model_validate(values)
    except ValidationError as error:
        for each in error.errors():
            other_version = each["type"] in ("extra_forbidden", "missing", "value_error")
            if not other_version and not (each["type"] == "literal_error" and isinstance(each["input"], str)):
                key = ".".join(map(str, each["loc"]))
                raise BadFile(f"cannot read {path}: {key} is {shortened(each['input'])}: {each['msg']}") from None


def check_epochs(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Numbers where numbers are counted on: epoch and attempt in every row, the others where there are any. A loss or
    a metric may be NaN."""
    for name in _EPOCH_KEYS if rows else ():
        if name not in rows[0]:
            raise BadFile(f"cannot read {path}: it has no column {name}")
    for name in rows[0] if rows else ():
        parse = parse_count if name in _EPOCH_COUNTS else parse_amount if name == "time_unix" else parse_float
        for place, row in enumerate(rows, 1):
            if (row[name] or name in _EPOCH_KEYS) and parse(row[name]) is None:
                raise BadFile(f"cannot read {path}: {name} of row {place} is {shortened(row[name])}, expected a number")
