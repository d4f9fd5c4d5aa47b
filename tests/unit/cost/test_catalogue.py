"""Prices: complete, dated, replaceable, and one clear line where one is missing or a file is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flatout.cost import Catalogue, load_catalogue
from flatout.cost import catalogue as catalogue_module
from flatout.errors import ConfigError


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load_catalogue(None)


@pytest.fixture
def price_file(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("instance", "on_demand", "spot", "as_of"),
    [
        ("g4dn.xlarge", 0.526, 0.229, "2026-08"),
        ("g4dn.2xlarge", 0.752, 0.305, "2026-08"),
        ("g5.xlarge", 1.006, None, "2026-08"),
        ("g5.2xlarge", 1.212, 0.721, "2026-08"),
        ("g6.xlarge", 0.805, None, "2026-08"),
        ("p4d.24xlarge", 21.96, None, "2026-08"),
        ("p3.2xlarge", 3.06, None, "2025-06"),
        ("p3.8xlarge", 12.24, None, "2025-06"),
        ("c5n.xlarge", 0.216, None, "2025"),
    ],
)
def test_shipped_instances(shipped: Catalogue, instance: str, on_demand: float, spot: float | None, as_of: str) -> None:
    price = shipped.hourly_usd(instance, spot=False)
    assert (price.value, price.as_of) == (on_demand, as_of)
    assert "shipped" in price.source
    if spot is None:
        with pytest.raises(ConfigError, match=f"no spot price is known for {instance}.*{instance}.spot_usd_per_hour"):
            shipped.hourly_usd(instance, spot=True)
    else:
        assert shipped.hourly_usd(instance, spot=True).value == spot


@pytest.mark.parametrize(
    ("section", "name", "figure", "value", "as_of"),
    [
        ("functions", "x86", "usd_per_gb_second", 0.0000166667, "2026-09"),
        ("functions", "arm", "usd_per_gb_second", 0.0000133334, "2026-09"),
        ("functions", "arm", "usd_per_million_requests", 0.20, "2026-09"),
        ("store", "s3-standard", "usd_per_thousand_gets", 0.0004, "2025"),
        ("store", "s3-standard", "usd_per_thousand_puts", 0.005, "2025"),
        ("store", "s3-standard", "usd_per_gb_month", 0.023, "2025"),
        ("store", "s3-express", "usd_per_thousand_gets", 0.00003, "undated"),
        ("store", "s3-express", "usd_per_thousand_puts", 0.00113, "undated"),
        ("store", "s3-express", "usd_per_gb_read", 0.0006, "undated"),
        ("store", "s3-express", "usd_per_gb_month", 0.11, "undated"),
        ("cache", "valkey-serverless", "usd_per_gb_hour", 0.084, "2026-06"),
        ("cache", "valkey-serverless", "usd_per_million_ecpu", 0.0023, "2026-06"),
        ("cache", "valkey-serverless", "minimum_gb", 0.1, "2026-06"),
        ("cache", "redis-serverless", "usd_per_gb_hour", 0.125, "2026-06"),
        ("cache", "redis-serverless", "usd_per_million_ecpu", 0.0034, "2026-06"),
        ("cache", "redis-serverless", "minimum_gb", 1.0, "2026-06"),
        ("disk", "gp3", "usd_per_gb_month", 0.08, "2021"),
        ("disk", "gp3", "usd_per_mb_per_second_month", 0.04, "2021"),
        ("disk", "gp3", "included_mb_per_second", 125.0, "2021"),
        ("transfer", "cross-zone", "usd_per_gb_each_way", 0.01, "2026"),
        ("transfer", "cross-region", "usd_per_gb", 0.02, "2026"),
        ("transfer", "internet", "usd_per_gb", 0.09, "2026"),
        ("network", "flow", "gbps", 5.0, "2026"),
        ("network", "flow", "placement_group_gbps", 10.0, "2026"),
    ],
)
def test_shipped_services(shipped: Catalogue, section: str, name: str, figure: str, value: float, as_of: str) -> None:
    price = shipped.find(section, name, figure)
    assert price is not None
    assert (price.value, price.as_of) == (value, as_of)


def test_every_shipped_entry_says_its_date_and_region() -> None:
    sections = yaml.safe_load(catalogue_module._SHIPPED.read_text(encoding="utf-8"))
    assert sections.pop("dated") == "2026-09"
    for section, entries in sections.items():
        for name, entry in entries.items():
            assert isinstance(entry["as_of"], str), (section, name)
            assert entry["region"] == "us-east-1", (section, name)


def test_unknown_instance_suggests_the_nearest_and_how_to_go_on(shipped: Catalogue) -> None:
    with pytest.raises(
        ConfigError, match=r"'g5\.2xlrge'.*did you mean g5\.2xlarge\?.*cost\.usd_per_hour.*cost\.prices"
    ):
        shipped.hourly_usd("g5.2xlrge", spot=False)


def test_an_instance_is_not_priced_in_a_region_nobody_gave(shipped: Catalogue) -> None:
    with pytest.raises(ConfigError, match="eu-west-1; known there: none"):
        shipped.hourly_usd("g5.xlarge", spot=False, region="eu-west-1")


def test_own_file_replaces_and_extends(price_file: Path) -> None:
    price_file.write_text(
        "dated: 2027-01-15\n"
        "instances:\n"
        "  g5.xlarge: {spot_usd_per_hour: 0.4}\n"
        "  g5.2xlarge: {usd_per_hour: 1.5, as_of: 2027-01}\n"
        "  basement: {usd_per_hour: 0}\n"
        "store: {s3-standard: {usd_per_gb_month: 0.02}}\n"
    )
    mine = load_catalogue(price_file)
    assert mine.dated == "2027-01-15"
    replaced = mine.hourly_usd("g5.2xlarge", spot=False)
    assert (replaced.value, replaced.as_of, replaced.source) == (1.5, "2027-01", str(price_file))
    assert mine.hourly_usd("g5.2xlarge", spot=True).value == 0.721  # not in the file: as shipped
    assert mine.hourly_usd("g5.xlarge", spot=True).as_of == "2027-01-15"
    assert mine.hourly_usd("g5.xlarge", spot=False).value == 1.006
    assert mine.hourly_usd("basement", spot=False).value == 0
    gets = mine.find("store", "s3-standard", "usd_per_thousand_gets")
    assert gets is not None
    assert gets.value == 0.0004


def test_own_file_may_be_for_another_region(price_file: Path) -> None:
    price_file.write_text("dated: 2027-01\nregion: eu-west-1\ninstances: {g5.xlarge: {usd_per_hour: 1.123}}\n")
    mine = load_catalogue(price_file)
    assert mine.hourly_usd("g5.xlarge", spot=False, region="eu-west-1").value == 1.123
    assert mine.hourly_usd("g5.xlarge", spot=False).value == 1.006


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no keys"),
        ("[1, 2]", "holds no keys"),
        ("instances: {a: {usd_per_hour: 1}}", "dated is None"),
        ("dated: true", "dated is True"),
        ("dated: ''", "dated is ''"),
        ("dated: 2026-13-45", "not valid YAML"),
        ("dated: [", "not valid YAML"),
        ("dated: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("[" * 600, "not valid YAML"),
        ("dated: 2026-09\ninstances: 3", "instances is 3"),
        ("dated: 2026-09\ninstances: {a: 3}", "instances.a is 3"),
        ("dated: 2026-09\ninstances: {a: {usd_per_hour: cheap}}", "instances.a.usd_per_hour is 'cheap'"),
        ("dated: 2026-09\ninstances: {a: {usd_per_hour: -1}}", "instances.a.usd_per_hour is -1"),
        ("dated: 2026-09\ninstances: {a: {usd_per_hour: true}}", "instances.a.usd_per_hour is True"),
        ("dated: 2026-09\ninstances: {a: {usd_per_hour: .nan}}", "instances.a.usd_per_hour is nan"),
        ("dated: 2026-09\ninstances: {a: {usd_per_hour: .inf}}", "instances.a.usd_per_hour is inf"),
        ("dated: 2026-09\ninstances: {a: {usd_per_hour: 1, as_of: []}}", "instances.a.as_of is []"),
        ("dated: 2026-09\ninstances: {a: {usd_per_huor: 1}}", "did you mean instances.a.usd_per_hour?"),
        (
            "dated: 2026-09\nstore: {s3-standart: {usd_per_gb_month: 1}}",
            "did you mean store.s3-standard.usd_per_gb_month?",
        ),
        ("dated: 2026-09\nqueue: {sqs: {usd: 1}}", "nothing uses queue.sqs.usd"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_file_key_and_value(price_file: Path, text: str, says: str) -> None:
    price_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_catalogue(price_file)
    message = str(caught.value)
    assert says in message
    assert str(price_file) in message
    assert "\n" not in message


def test_a_huge_value_is_not_repeated_in_full(price_file: Path) -> None:
    price_file.write_text("dated: 2026-09\ninstances: {a: {usd_per_hour: " + "x" * 100_000 + "}}")
    with pytest.raises(ConfigError) as caught:
        load_catalogue(price_file)
    assert len(str(caught.value)) < 1000


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the price file .*none\.yaml: No such file"):
        load_catalogue(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot read .*binary\.yaml"):
        load_catalogue(tmp_path / "binary.yaml")


def test_the_room_is_light() -> None:
    code = "import sys, flatout.cost; print(*sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
