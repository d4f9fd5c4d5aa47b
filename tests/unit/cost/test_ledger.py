"""The ledger: lines add up, usage adds up, units convert, and what has no price is said."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.schema import CostConfig
from flatout.cost import CostLine, Ledger, Usage, hourly_rate_usd, load_catalogue, usage_cost
from flatout.errors import ConfigError

SHIPPED = load_catalogue(None)
HOUR = 3600.0
MONTH = 730 * HOUR
unhurried = settings(deadline=None)  # a noisy machine must not fail a pure function

amounts = st.floats(0, 1e12, allow_subnormal=False)
usages = st.builds(Usage, **{each.name: amounts for each in fields(Usage)})
nodes = st.fixed_dictionaries({"instance": st.sampled_from(["c5n.xlarge", "g6.xlarge"]), "count": st.integers(1, 9)})
node_costs = st.builds(
    CostConfig,
    instance=st.sampled_from(["g4dn.xlarge", "g5.2xlarge"]),
    count=st.integers(1, 64),
    spot=st.booleans(),
    coordinator=nodes,
    cache=nodes,
    functions=st.fixed_dictionaries({"architecture": st.sampled_from(["x86", "arm"])}),
    store=st.fixed_dictionaries({"kind": st.sampled_from(["s3-standard", "s3-express"])}),
    disk=st.fixed_dictionaries({"bytes": st.integers(0, 10**13), "mb_per_second": st.sampled_from([None, 100, 500])}),
)
ledgers = st.lists(st.floats(0, 1e7), max_size=12).map(
    lambda dollars: Ledger(
        tuple(CostLine(f"line {at}", usd, "each", 1.0, usd) for at, usd in enumerate(dollars)), "2026"
    )
)


def cost_of(usage: Usage, **config: object) -> dict[str, tuple[Any, str, Any]]:
    """name -> quantity, unit, dollars, for a machine that is free."""
    ledger = usage_cost(usage, CostConfig.model_validate({"usd_per_hour": 0, **config}), SHIPPED)
    return {line.name: (line.quantity, line.unit, line.usd) for line in ledger.lines}


@unhurried
@given(usages, node_costs)
def test_lines_add_up_to_the_total(usage: Usage, cost: CostConfig) -> None:
    ledger = usage_cost(usage, cost, SHIPPED)
    assert ledger.total_usd == math.fsum(line.usd for line in ledger.lines)
    assert all(line.usd == line.quantity * line.unit_price_usd for line in ledger.lines)
    assert len({line.name for line in ledger.lines}) == len(ledger.lines)


@unhurried
@given(usages, node_costs)
def test_twice_the_usage_costs_twice(usage: Usage, cost: CostConfig) -> None:
    once, twice = usage_cost(usage, cost, SHIPPED), usage_cost(usage + usage, cost, SHIPPED)
    assert twice.total_usd == pytest.approx(2 * (once.total_usd or 0), rel=1e-9)


@unhurried
@given(usages, usages, node_costs)
def test_attempts_of_a_resumed_run_add(first: Usage, second: Usage, cost: CostConfig) -> None:
    together = usage_cost(first + second, cost, SHIPPED).total_usd
    apart = [usage_cost(each, cost, SHIPPED).total_usd or 0 for each in (first, second)]
    assert together == pytest.approx(math.fsum(apart), rel=1e-9)


@unhurried
@given(usages)
def test_no_usage_adds_nothing(usage: Usage) -> None:
    assert usage + Usage() == usage


@unhurried
@given(st.floats(0, 1e9), node_costs)
def test_live_spend_and_final_ledger_agree(seconds: float, cost: CostConfig) -> None:
    rate = hourly_rate_usd(cost, SHIPPED)
    usage = Usage(training_seconds=seconds, coordinator_seconds=seconds, cache_seconds=seconds)
    assert rate is not None
    assert usage_cost(usage, cost, SHIPPED).total_usd == pytest.approx(rate * seconds / HOUR, rel=1e-9)


def test_nothing_used_costs_nothing() -> None:
    ledger = usage_cost(Usage(), CostConfig(), SHIPPED)
    assert (ledger.lines, ledger.total_usd, ledger.prices_dated) == ((), 0.0, "2026-09")


def test_training_nodes_count_and_spot() -> None:
    usage = Usage(training_seconds=1800)
    on_demand = usage_cost(usage, CostConfig(instance="g5.2xlarge", count=4), SHIPPED)
    assert on_demand.lines == (CostLine("training nodes", 2.0, "g5.2xlarge hours", 1.212, 2.424),)
    spot = usage_cost(usage, CostConfig(instance="g5.2xlarge", count=4, spot=True), SHIPPED)
    assert spot.lines == (CostLine("training nodes", 2.0, "g5.2xlarge spot hours", 0.721, 1.442),)
    own = usage_cost(usage, CostConfig(usd_per_hour=3.0), SHIPPED)
    assert own.lines == (CostLine("training nodes", 0.5, "node hours", 3.0, 1.5),)


def test_spot_is_for_training_nodes_only() -> None:
    cost = CostConfig.model_validate(
        {"instance": "g4dn.xlarge", "spot": True, "coordinator": {"instance": "g4dn.xlarge"}}
    )
    assert hourly_rate_usd(cost, SHIPPED) == pytest.approx(0.229 + 0.526)


def test_units_are_those_of_the_price_list() -> None:
    usage = Usage(
        function_gb_seconds=1e6,
        function_requests=3_000_000,
        gets=10_000,
        puts=10_000,
        store_read_bytes=5e9,
        stored_byte_seconds=100e9 * MONTH,
        transferred_bytes_cross_zone=1e9,
        transferred_bytes_cross_region=1e9,
        transferred_bytes_internet=1e9,
    )
    assert cost_of(usage) == {
        "function compute": (1e6, "GB-seconds", pytest.approx(16.6667)),
        "function requests": (3.0, "million requests", pytest.approx(0.60)),
        "object-store GETs": (10.0, "thousand requests", pytest.approx(0.004)),
        "object-store PUTs": (10.0, "thousand requests", pytest.approx(0.05)),
        "object-store storage": (pytest.approx(100.0), "GB-months", pytest.approx(2.30)),
        "transfer across zones": (2.0, "GB out and in", pytest.approx(0.02)),
        "transfer across regions": (1.0, "GB", pytest.approx(0.02)),
        "transfer to the internet": (1.0, "GB", pytest.approx(0.09)),
    }
    other = cost_of(usage, functions={"architecture": "arm"}, store={"kind": "s3-express"})
    assert other["function compute"][2] == pytest.approx(13.3334)
    assert other["object-store GETs"][2] == pytest.approx(0.0003)
    assert other["object-store PUTs"][2] == pytest.approx(0.0113)
    assert other["object-store reads"] == (5.0, "GB", pytest.approx(0.003))
    assert other["object-store storage"][2] == pytest.approx(11.0)


def test_disks_of_every_machine_for_as_long_as_it_trains() -> None:
    lines = cost_of(Usage(training_seconds=MONTH), count=2, disk={"bytes": "100 GB", "mb_per_second": 225})
    assert lines["disks"] == (pytest.approx(200.0), "GB-months", pytest.approx(16.0))
    assert lines["disk throughput"] == (pytest.approx(200.0), "MB/s-months", pytest.approx(8.0))
    included = cost_of(Usage(training_seconds=MONTH), disk={"bytes": "100 GB", "mb_per_second": 125})
    assert "disk throughput" not in included


def test_a_serverless_cache_bills_what_it_holds_and_moves_and_at_least_its_minimum() -> None:
    held = Usage(cache_seconds=2 * HOUR, cache_stored_byte_seconds=50e9 * 2 * HOUR, cache_transferred_bytes=4e12)
    lines = cost_of(held, cache={"kind": "valkey-serverless"})
    assert lines["cache storage"] == (pytest.approx(100.0), "GB-hours", pytest.approx(8.4))
    assert lines["cache requests"] == (pytest.approx(4000.0), "million ECPUs", pytest.approx(9.2))
    idle = cost_of(Usage(cache_seconds=10 * HOUR), cache={"kind": "redis-serverless"})
    assert idle == {"cache storage": (pytest.approx(10.0), "GB-hours", pytest.approx(1.25))}


def test_what_has_no_price_makes_the_total_unknown_not_zero() -> None:
    usage = Usage(training_seconds=HOUR, coordinator_seconds=HOUR, cache_seconds=HOUR, gets=1000)
    ledger = usage_cost(usage, CostConfig(), SHIPPED)
    assert ledger.total_usd is None
    assert [line.name for line in ledger.lines] == ["object-store GETs"]
    assert ledger.unpriced == (
        "training nodes has no price; set cost.instance or cost.usd_per_hour",
        "coordinator nodes has no price; set cost.coordinator.instance or cost.coordinator.usd_per_hour",
        "cache nodes has no price; set cost.cache.instance or cost.cache.usd_per_hour",
    )
    assert hourly_rate_usd(CostConfig(), SHIPPED) is None


def test_prices_of_another_region_are_not_used(tmp_path: Path) -> None:
    cost = CostConfig(usd_per_hour=1.0, region="eu-west-1")
    ledger = usage_cost(Usage(training_seconds=HOUR, gets=1000), cost, SHIPPED)
    assert ledger.total_usd is None
    assert ledger.unpriced == (
        "object-store GETs has no price; "
        "set store.s3-standard.usd_per_thousand_gets for eu-west-1 in a file named by cost.prices",
    )
    (tmp_path / "eu.yaml").write_text(
        "dated: 2027-01\nregion: eu-west-1\nstore: {s3-standard: {usd_per_thousand_gets: 0.5}}\n"
    )
    mine = usage_cost(Usage(training_seconds=HOUR, gets=1000), cost, load_catalogue(tmp_path / "eu.yaml"))
    assert (mine.total_usd, mine.prices_dated) == (1.5, "2027-01")


@pytest.mark.parametrize("section", ["coordinator", "cache"])
def test_an_unknown_instance_is_found_before_the_run(section: str) -> None:
    for config in ({"instance": "g5.2xlrge"}, {"usd_per_hour": 1, section: {"instance": "g5.2xlrge"}}):
        with pytest.raises(ConfigError, match=r"did you mean g5\.2xlarge\?"):
            hourly_rate_usd(CostConfig.model_validate(config), SHIPPED)


def test_a_free_machine_has_a_price() -> None:
    assert hourly_rate_usd(CostConfig(usd_per_hour=0), SHIPPED) == 0.0


def test_the_record_is_json_in_the_shape_of_summary_json() -> None:
    ledger = usage_cost(Usage(training_seconds=HOUR), CostConfig(instance="g4dn.xlarge"), SHIPPED)
    assert json.loads(json.dumps(ledger.to_dict(), allow_nan=False)) == {
        "total_usd": 0.526,
        "lines": [
            {
                "name": "training nodes",
                "quantity": 1.0,
                "unit": "g4dn.xlarge hours",
                "unit_price_usd": 0.526,
                "usd": 0.526,
            }
        ],
        "prices_dated": "2026-09",
        "unpriced": [],
    }
