"""From rows of system.csv to the summary: weighted by time, over all attempts, null where nothing was read."""

import json
from pathlib import Path
from typing import Any

from flatout.runs import read_run
from flatout.runs.directory import write_text
from flatout.runs.system import SYSTEM_COLUMNS, SystemTotals
from flatout.runs.tables import Table, read_table


def row(interval_seconds: float | None, **cells: Any) -> dict[str, Any]:
    return {"attempt": 1, "seconds": 5.0, "time_unix": 1.0, "interval_seconds": interval_seconds, **cells}


def test_means_are_weighted_by_the_length_of_the_interval() -> None:
    totals = SystemTotals([row(1.0, cpu=0.5, cpu0=0.9, cpu1=0.1), row(3.0, cpu=0.9, cpu0=1.0, cpu1=0.8)])
    host = totals.host({"cpu": {"cores": 2, "cpu_limit_cores": 1.5}})
    assert host["cpu_mean"] == 0.8
    assert host["cpu_max_core"] == (0.9 + 3.0) / 4
    assert (host["cores"], host["cpu_limit_cores"]) == (2, 1.5)


def test_bytes_add_up_and_the_peak_is_of_one_direction() -> None:
    rows = [
        row(None, nic_eth0_sent_bytes=None, nic_eth0_received_bytes=None),
        row(1.0, nic_eth0_sent_bytes=100, nic_eth0_received_bytes=12_500_000),
        row(2.0, nic_eth0_sent_bytes=300, nic_eth0_received_bytes=10_000_000),
        row(0.01, nic_eth0_sent_bytes=9_000_000, nic_eth0_received_bytes=0),
    ]
    described = {"interface": "eth0", "links_bits_per_second": {"eth0": 10**9}}
    assert SystemTotals(rows).network(described) == {
        "bytes_sent": 9_000_400,
        "bytes_received": 22_500_000,
        "peak_bits_per_second": 100_000_000,  # not the 7.2 Gb/s of a hundredth of a second
        "link_bits_per_second": 10**9,
        "interface": "eth0",
    }


def test_all_cards_and_all_attempts_count() -> None:
    rows = [
        row(
            1.0,
            gpu0_utilization=0.9,
            gpu1_utilization=0.5,
            gpu0_memory_bytes=3,
            gpu1_memory_bytes=7,
            gpu0_throttle="none",
        ),
        row(1.0, gpu0_utilization=0.7, gpu1_utilization=None, gpu0_power_watts=60.0, gpu0_throttle="power_cap"),
    ]
    use = SystemTotals(rows).device_use()
    assert use["utilization_mean"] == 0.65
    assert use["memory_peak_bytes"] == 7
    assert use["power_watts_mean"] == 60.0


def test_what_was_never_read_is_null() -> None:
    totals = SystemTotals([row(1.0, gpu0_utilization="", cpu="")])
    assert set(totals.device_use().values()) == {None}
    assert set(totals.network({}).values()) == {None}
    host = totals.host({})
    assert host.pop("disks") == {}
    assert host.pop("gpus") == []
    assert set(host.values()) == {None}


def test_rows_read_back_from_the_file_sum_up_like_the_rows_themselves(tmp_path: Path) -> None:
    rows = [
        row(None, cpu=None, rss_peak_bytes=50, disk_vda_read_bytes=None, disk_vda_busy=None),
        row(1.5, cpu=0.25, rss_peak_bytes=90, disk_vda_read_bytes=4000, disk_vda_busy=0.97),
    ]
    table = Table(tmp_path / "system.csv", SYSTEM_COLUMNS)
    for each in rows:
        table.append(each)
    table.close()
    described = {"disk": {"data": "vda", "run": None}}
    written = SystemTotals(read_table(tmp_path / "system.csv")).host(described)
    assert written == SystemTotals(rows).host(described)
    assert written["rss_peak_bytes"] == 90
    assert written["disks"]["data"]["read_bytes"] == 4000
    assert written["disks"]["run"]["read_bytes"] is None
    json.dumps(written, allow_nan=False)


def test_a_run_gives_its_rows_when_asked(tmp_path: Path) -> None:
    write_text(tmp_path / "config.yaml", "name: x\n")
    assert read_run(tmp_path).system == []
    write_text(tmp_path / "system.csv", "attempt,seconds,cpu\n1,0.5,\n1,1.5,0.25\n1,2.")
    assert read_run(tmp_path).system == [
        {"attempt": "1", "seconds": "0.5", "cpu": ""},
        {"attempt": "1", "seconds": "1.5", "cpu": "0.25"},
    ]


def test_readings_that_no_monitor_makes_count_for_nothing() -> None:
    good = row(1.0, cpu=0.5, rss_peak_bytes=100, nic_eth0_sent_bytes=1)
    bad = [row(-1.0, cpu=-1, rss_peak_bytes=-5), row(1e39, rss_peak_bytes=1e39), row(0.0, nic_eth0_sent_bytes="1e39")]
    totals, described = SystemTotals([*bad, good, *bad]), {"interface": "eth0"}
    assert totals.host({}) == SystemTotals([good]).host({})
    assert totals.network(described) == SystemTotals([good]).network(described)
