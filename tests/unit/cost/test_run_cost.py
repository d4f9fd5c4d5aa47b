"""From a run's records to its bill: store requests, nodes beside the training, killed runs, the live figure."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.schema import CostConfig
from flatout.cost import Usage, load_catalogue, run_usage, spend_rates, usage_cost
from flatout.runs import RunDirectory, read_run
from flatout.runs.directory import write_json, write_text

SHIPPED = load_catalogue(None)
SECTION: dict[str, Any] = {"instance": "g4dn.xlarge", "coordinator": {"instance": "c5n.xlarge"}, "store": {}}


def lines(wall_seconds: float, data: dict[str, float] | None = None, **cost: Any) -> dict[str, float]:
    config = CostConfig.model_validate({"usd_per_hour": 3.6, **cost})
    return {line.name: line.usd for line in usage_cost(run_usage(wall_seconds, config, data), config, SHIPPED).lines}


def test_requests_to_the_store_are_on_the_bill() -> None:
    data = {"store_requests": 300_000, "store_bytes": 5e9}
    assert lines(1000, data) == pytest.approx({"training nodes": 1.0, "object-store GETs": 0.12})
    assert lines(1000, data, store={"kind": "s3-express"})["object-store reads"] == pytest.approx(0.003)
    assert lines(1000, data, store={"reached": "other-region"})["transfer across regions"] == pytest.approx(0.10)
    assert lines(1000, data, store={"reached": "internet"})["transfer to the internet"] == pytest.approx(0.45)
    assert lines(1000) == pytest.approx({"training nodes": 1.0})


def test_coordinator_and_cache_are_paid_as_long_as_the_run() -> None:
    found = lines(1000, coordinator={"usd_per_hour": 0.36}, cache={"usd_per_hour": 0.72, "count": 2})
    assert found == pytest.approx({"training nodes": 1.0, "coordinator nodes": 0.1, "cache nodes": 0.4})


@settings(deadline=None)
@given(
    st.floats(0, 1e7), st.integers(0, 10**9), st.integers(0, 10**15), st.sampled_from(["s3-standard", "s3-express"]),
    st.sampled_from(["same-region", "other-region", "internet"]),
)  # fmt: skip
def test_the_live_figure_is_the_final_bill(seconds: float, requests: int, read: int, kind: str, reached: str) -> None:
    cost = CostConfig.model_validate(
        {"instance": "g5.2xlarge", "count": 2, "cache": {"instance": "c5n.xlarge"}, "disk": {"bytes": "100 GB"},
         "store": {"kind": kind, "reached": reached}}
    )  # fmt: skip
    rates = spend_rates(cost, SHIPPED)
    usage = run_usage(seconds, cost, {"store_requests": requests, "store_bytes": read})
    assert rates is not None
    assert rates.spent_usd(seconds, requests, read) == pytest.approx(
        usage_cost(usage, cost, SHIPPED).total_usd, rel=1e-9
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**8)), min_size=1, max_size=6))
def test_attempts_cost_what_they_cost_one_by_one(attempts: list[tuple[float, int]]) -> None:
    apart = [sum(lines(seconds, {"store_requests": gets}).values()) for seconds, gets in attempts]
    together = lines(sum(s for s, _ in attempts), {"store_requests": sum(g for _, g in attempts)})
    assert sum(together.values()) == pytest.approx(sum(apart), rel=1e-9)


UNITS = {  # line -> base units in one of its units
    "training nodes": ("training_seconds", 3600), "function compute": ("function_gb_seconds", 1),
    "function requests": ("function_requests", 1e6), "object-store GETs": ("gets", 1e3),
    "object-store PUTs": ("puts", 1e3), "object-store reads": ("store_read_bytes", 1e9),
    "object-store storage": ("stored_byte_seconds", 1e9 * 730 * 3600),
    "transfer across zones": ("transferred_bytes_cross_zone", 1e9 / 2),
    "transfer across regions": ("transferred_bytes_cross_region", 1e9),
    "transfer to the internet": ("transferred_bytes_internet", 1e9),
}  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(sorted(UNITS)), st.floats(1e-3, 1e15))
def test_what_is_billed_is_what_was_used_in_the_units_of_the_price(line: str, amount: float) -> None:
    field, base_units = UNITS[line]
    cost = CostConfig.model_validate({"usd_per_hour": 2.0, "store": {"kind": "s3-express"}})
    (found,) = [each for each in usage_cost(Usage(**{field: amount}), cost, SHIPPED).lines if each.name == line]
    assert found.quantity * base_units == pytest.approx(amount, rel=1e-12)


def test_a_limit_holds_although_something_has_no_price() -> None:
    cost = CostConfig.model_validate({"usd_per_hour": 3.6, "region": "eu-west-1"})  # no shipped price of a GET there
    rates = spend_rates(cost, SHIPPED)
    assert rates is not None
    assert rates.spent_usd(1000, 10**6, 0) == pytest.approx(1.0)
    assert spend_rates(CostConfig(), SHIPPED) is None


def make_run(root: Path, section: dict[str, Any] | None, **summary: Any) -> Path:
    root.mkdir(parents=True)
    directory = RunDirectory(root)
    write_text(directory.config, yaml.safe_dump({"name": "x", **({} if section is None else {"cost": section})}))
    write_json(directory.summary, {"run": "x", "status": "failed", **summary})
    return root


def test_whoever_reads_a_killed_run_sees_its_cost_and_writes_nothing(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", SECTION, time={"wall_seconds": 7200.0}, data={"store_requests": 1000}, cost=None)
    found = read_run(root).summary["cost"]
    assert found["total_usd"] == pytest.approx(2 * 0.526 + 2 * 0.216 + 0.0004)
    assert not (root / "cost.json").exists()
    assert json.loads((root / "summary.json").read_text())["cost"] is None


def test_a_run_that_has_its_cost_keeps_it(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", SECTION, time={"wall_seconds": 7200.0}, cost={"total_usd": 5.0})
    assert read_run(root).summary["cost"] == {"total_usd": 5.0}


@pytest.mark.parametrize("cost", [None, SECTION])
def test_a_run_without_time_or_prices_has_no_bill(tmp_path: Path, cost: dict[str, Any] | None) -> None:
    times: dict[str, Any] = {"time": {"wall_seconds": 10.0}} if cost is None else {}
    root = make_run(tmp_path / "run", cost, **times)
    assert read_run(root).summary.get("cost") is None


@pytest.mark.parametrize("cost", [{"prices": "/nowhere/prices.yaml"}, {"instance": "p9.huge"}])
def test_prices_that_are_not_here_make_the_total_unknown_with_the_reason(tmp_path: Path, cost: dict[str, Any]) -> None:
    root = make_run(tmp_path / "run", cost, time={"wall_seconds": 10.0})
    found = read_run(root).summary["cost"]
    assert found["total_usd"] is None
    assert len(found["unpriced"]) == 1
