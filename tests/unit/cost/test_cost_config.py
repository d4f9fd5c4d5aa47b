"""The cost section of a recipe: what it accepts, and keys that nothing would use."""

from pathlib import Path

import pytest

from flatout.config.loading import dump_config, load_config
from flatout.errors import ConfigError


def test_a_full_section_loads_and_comes_back_equal(tmp_path: Path) -> None:
    recipe = {
        "data": {"path": "s3://bucket/images"},
        "cost": {
            "instance": "g5.2xlarge", "count": 2, "spot": True, "region": "eu-west-1", "prices": "prices/eu.yaml",
            "coordinator": {"instance": "c5n.xlarge"}, "cache": {"usd_per_hour": 0.4, "count": 3},
            "functions": {"architecture": "arm"}, "store": {"kind": "s3-express"},
            "disk": {"bytes": "200 GB", "mb_per_second": 250},
        },
    }  # fmt: skip
    config = load_config(recipe).config
    assert config.cost.prices == Path("prices/eu.yaml")
    assert config.cost.disk.bytes == 200 * 10**9
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml").config == config


def test_null_means_no_coordinator_and_no_cache() -> None:
    config = load_config({"cost": {"coordinator": None, "cache": None}}).config
    assert config.cost.coordinator.instance is None
    assert config == load_config({}).config


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        ({"disk": {"bytes": "10 GB"}}, "cost.disk.bytes is"),
        ({"usd_per_hour": 1, "disk": {"mb_per_second": 500}}, "cost.disk.bytes is set"),
        ({"coordinator": {"count": 2}}, "cost.coordinator has a price"),
        ({"cache": {"count": 2}}, "cost.cache has the price of a machine"),
        ({"cache": {"kind": "valkey-serverless", "instance": "c5n.xlarge"}}, "cost.cache.kind is nodes"),
        ({"cache": {"kind": "valkey-serverless", "usd_per_hour": 1}}, "cost.cache.kind is nodes"),
        ({"store": {"kind": "s3-express"}}, "data.path is in an object store"),
        ({"coordinator": {"instance": "a", "usd_per_hour": 1}}, "cost.coordinator.usd_per_hour both give a price"),
        ({"cache": {"instance": "a", "usd_per_hour": 1}}, "cost.cache.usd_per_hour both give a price"),
        ({"instance": "a", "usd_per_hour": 1}, "cost.instance and cost.usd_per_hour both give a price"),
        ({"coordinator": {"instnce": "a"}}, "did you mean cost.coordinator.instance?"),
        ({"cache": {"kind": "memcached"}}, "cost.cache.kind is 'memcached'"),
        ({"disk": {"bytes": -1}}, "cost.disk.bytes is -1"),
        ({"count": 0}, "cost.count is 0"),
        ({"usd_per_hour": -1}, "cost.usd_per_hour is -1"),
        ({"usd_per_hour": float("nan")}, "cost.usd_per_hour is"),
    ],
)
def test_what_nothing_uses_or_cannot_be_is_an_error(cost: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"cost": cost})
    assert says in str(caught.value)
