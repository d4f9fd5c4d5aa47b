"""Requests to an object store are counted wherever they are made, and are on the run's bill."""

from pathlib import Path

import pytest

import flatout
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from training import BATCH_SIZE, make_dataset, recipe

VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


@pytest.mark.parametrize(("workers", "kind"), [(1, "thread"), (1, "process")])
def test_every_request_is_on_the_bill(
    bucket: Bucket, fault_proxy: FaultProxy, work: Path, monkeypatch: pytest.MonkeyPatch, workers: int, kind: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    for option, variable in VARIABLES.items():
        monkeypatch.setenv(variable, bucket.options[option])
    make_dataset(bucket.folder, samples_per_class=2 * BATCH_SIZE, val_per_class=1)
    changes = {"train__epochs": 1, "data__workers": workers, "data__worker_kind": kind, "data__stage": "off"}
    values = recipe(
        Path("x"), **changes, data__cache="off", cost={"usd_per_hour": 1.0, "store": {"reached": "internet"}}
    )
    run = flatout.train(values, {"data.path": bucket.url}, run=work / "run")
    data, cost = run.summary["data"], run.summary["cost"]
    samples = 4 * (2 * BATCH_SIZE + 1)
    assert data["store_requests"] >= samples
    assert data["store_bytes"] >= data["dataset_bytes"]
    lines = {line["name"]: line for line in cost["lines"]}
    assert lines["object-store GETs"]["quantity"] == data["store_requests"] / 1000
    assert lines["transfer to the internet"]["quantity"] == data["store_bytes"] / 1e9
    assert cost["total_usd"] == pytest.approx(sum(line["usd"] for line in cost["lines"]))
    assert data["store_requests"] <= fault_proxy.counts().requests  # listing and checks are requests too
