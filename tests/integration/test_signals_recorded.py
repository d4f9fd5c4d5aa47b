"""Every signal that a rule may read is filled by some run that was really recorded: a rule on another can never fire."""

import json
import shutil
import sys
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.signals import Signals
from flatout.machine.gpu import GpuReader
from flatout.runs import read_run
from ranks import run_ranks
from servers.faults import Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from training import command, recipe

sys.path.append(str(Path(__file__).parents[1] / "unit" / "machine"))
from test_monitor_readers import FakeNvml

FROM_ELSEWHERE = {
    "prediction_errors": "commands/predict.py scores them from other runs",
    "input.cache_choice": "a value of its own: test_cache_choice.py",
    "host.quota_cores": "of a container: test_verdicts_recorded.py",
    "host.rows.throttled_cores": "of a container: test_verdicts_recorded.py",
    "script": "of a recorded script: test_record.py",
    "cost.usd_per_hour": "a run that fails at once costs nothing",
}
COUNTED = {
    "input.shared.local": "local",
    "input.shared.answers": "asks",
    "input.shared.busy_answers": "busy_answers",
    "input.shared.made": "service_made",
    "input.shared.evicted_needed": "service_evicted_needed",
    "input.shared.cold_starts": "service_cold_starts",
}
"""Counts of a service, which may be 0, and their names in the summary."""
STORE = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}


def filled(value: Any, name: str = "") -> set[str]:
    """Names of the fields, through all groups, that hold something else than what a run without files has."""
    found: set[str] = set()
    for field in fields(value):
        held, place = getattr(value, field.name), f"{name}{field.name}"
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if is_dataclass(held) and not isinstance(held, type):
            found |= {place} | filled(held, f"{place}.")
        elif isinstance(held, tuple) and held and is_dataclass(held[0]):
            found |= {place}.union(*(filled(each, f"{place}.") for each in held))
        elif held is not None and held != default:
            found.add(place)
    return found


def every(example: Any, name: str = "") -> set[str]:
    """Names of all fields of a value whose groups are all there."""
    names: set[str] = set()
    for field in fields(example):
        held, place = getattr(example, field.name), f"{name}{field.name}"
        inner = held[0] if isinstance(held, tuple) and held and is_dataclass(held[0]) else held
        names |= every(inner, f"{place}.") if is_dataclass(inner) and place not in FROM_ELSEWHERE else {place}
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


def trained(folder: Path, data: Path | str, name: str, place: dict[str, str] | None = None, **changes: Any) -> Signals:
    values = recipe(Path(data), **{"name": name, "monitor__interval_seconds": 0.2, **changes})
    values["data"]["path"] = str(data)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    answer = command("train", f"{name}.yaml", cwd=folder, environment=place)
    assert answer.code in (0, 1), answer.err
    return read_signals(read_run(folder / "runs" / name))


def on_a_card(folder: Path, name: str) -> Signals:
    """A recorded run with the columns that the real reader makes of a driver's answers."""
    run = folder / "runs" / "card"
    shutil.copytree(folder / "runs" / name, run)
    reader = GpuReader(["talks"], FakeNvml())
    cells = reader.read(None)
    (run / "system.csv").write_text(
        ",".join(["interval_seconds", *cells]) + "\n" + ",".join(["1", *map(str, cells.values())]) + "\n"
    )
    summary, environment = (json.loads((run / each).read_text()) for each in ("summary.json", "env.json"))
    summary["host"]["gpus"] = reader.describe()["gpus"]
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "env.json").write_text(json.dumps({**environment, "device": {**environment["device"], "kind": "cuda"}}))
    return read_signals(read_run(run))


def test_every_signal_is_filled_by_some_recorded_run(
    shapes: Path, sentences: Path, folder: Path, bucket: Bucket, fault_proxy: FaultProxy
) -> None:
    emulated = {"device": "emulated", "emulated": {"base_seconds": 0.004, "seconds_per_sample": 0.0001}}
    local = trained(
        folder, shapes, "local", threads=2, data__workers=1, data__worker_kind="process", train__accumulate=2,
        train__checkpointing=True, train__log_every=2, train__label_smoothing=0.1, views__small__mixup=0.2,
        views__small__trivial_augment=True, checkpoint__every_epochs=2, validate__every_epochs=2,
        cost={"instance": "g4dn.xlarge", "spot": True},
    )  # fmt: skip
    failed = trained(folder, shapes, "failed", train__lr=1e12, train__warmup_epochs=0, data__cache="memory")
    text = trained(folder, sentences, "text")
    shutil.copytree(shapes, bucket.folder / "shapes")
    fault_proxy.rules(Rule("throttle", share=0.2, objects_only=True))
    place = {STORE[name]: value for name, value in bucket.options.items() if name in STORE} | {"AWS_ALLOW_HTTP": "true"}
    store = trained(folder, f"{bucket.url}/shapes", "store", place, data__workers=1, data__stage="auto", **emulated)
    pair = recipe(shapes, name="pair", parallel={"mode": "ddp", "devices": 2}, data__global_batch=16)
    del pair["data"]["batch_size"]
    (folder / "pair.yaml").write_text(yaml.safe_dump(pair))
    assert [each.code for each in run_ranks(2, "train", "pair.yaml", cwd=folder)] == [0, 0]
    ranks = read_signals(read_run(folder / "runs" / "pair"))
    shared = trained(folder, shapes, "shared", data__shared="auto", data__workers=1)
    runs = [local, failed, text, store, ranks, shared, on_a_card(folder, "local")]
    whole = replace(
        local, ranks=ranks.ranks, input=replace(local.input, store=store.input.store, shared=shared.input.shared)
    )
    missing = every(whole) - set().union(*map(filled, runs)) - FROM_ELSEWHERE.keys()
    assert missing <= {"ranks.nodes", "ranks.cap_bits_per_second", *COUNTED}
    assert read_run(folder / "runs" / "shared").summary["shared"].keys() >= set(COUNTED.values())
    link = json.loads((folder / "runs" / "pair" / "link.json").read_text())
    assert link.keys() >= {"nodes", "cap_bits_per_second"}
