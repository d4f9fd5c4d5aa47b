from datetime import date
from pathlib import Path

import pytest

from flatout.cost.catalogue import load_catalogue
from flatout.cost.machines import card_name, days_old, load_machines, read_skypilot
from flatout.errors import ConfigError
from flatout.planning.cards import load_cards

SKYPILOT = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
g5.xlarge,4.0,16.0,A10G,1.0,,1.006,0.5,us-east-1,a
g5.xlarge,4.0,16.0,A10G,1.0,,0.9,0.4,us-west-2,a
m5.large,2.0,8.0,,,,0.1,,us-east-1,a
odd,4,16,RTX9999,1,,2.0,,us-east-1,a
"""


def test_shipped_machines_name_cards_that_have_figures():
    machines = load_machines()
    assert len(machines) > 250
    assert {each.gpu for each in machines} - set(load_cards()) == {"K80", "M60"}
    assert len({each.name for each in machines}) == len(machines)


def test_a_price_file_replaces_and_adds_machines(tmp_path: Path):
    text = "dated: 2026-11\ninstances:\n  g4dn.xlarge: {usd_per_hour: 0.6}\n  desk: {gpu: RTX 3090, vcpus: 8, usd_per_hour: 0.05}\n"
    path = tmp_path / "prices.yaml"
    path.write_text(text.replace("\\\n", "\n"))
    load_catalogue(path)
    entries = {
        "dated": "2026-11",
        "instances": {"g4dn.xlarge": {"usd_per_hour": 0.6}, "desk": {"gpu": "RTX 3090", "vcpus": 8}},
    }
    machines = {each.name: each for each in load_machines(entries)}
    assert machines["g4dn.xlarge"].usd_per_hour == 0.6
    assert machines["g4dn.xlarge"].gpu == "T4"
    assert (machines["desk"].gpu, machines["desk"].vcpus, machines["desk"].gpus) == ("RTX 3090", 8, 1)


def test_a_machine_of_the_table_has_a_price_in_the_catalogue_too():
    assert load_catalogue().hourly_usd("g6.2xlarge", spot=False).value > 0


def test_skypilot_s_catalogue_becomes_a_price_file_with_the_cheapest_region():
    told = read_skypilot(SKYPILOT, "aws.csv", "2026-11-18")
    assert told["instances"]["g5.xlarge"] == {
        "gpu": "A10G", "gpus": 1, "usd_per_hour": 0.9, "spot_usd_per_hour": 0.4, "vcpus": 4.0, "memory_gib": 16.0,
        "region": "us-west-2", "as_of": "2026-11-18",
    }  # fmt: skip
    assert "m5.large" not in told["instances"]


@pytest.mark.parametrize("cards", ["nan", "-1", "1e999"])
def test_a_number_of_cards_that_is_none_is_no_machine(cards: str):
    told = read_skypilot(SKYPILOT.replace(",A10G,1.0,", f",A10G,{cards},"), "aws.csv", "2026-11-18")
    assert "g5.xlarge" not in told["instances"]


def test_another_csv_is_one_line():
    with pytest.raises(ConfigError, match="AcceleratorName"):
        read_skypilot("a,b\n1,2\n", "x.csv", "2026-11")


def test_names_and_ages():
    assert card_name("A100-80GB") == "A100 80GB SXM4"
    assert days_old("2026-08", date(2026, 11, 18)) == 109
    assert days_old("undated", date(2026, 11, 18)) is None
    assert days_old(f"2026-{10**30}", date(2026, 11, 18)) is None
