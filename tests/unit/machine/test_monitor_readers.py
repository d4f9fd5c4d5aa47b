"""Readers: texts of the kernel as they look on other machines, and this machine as it is."""

import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from flatout.machine.cgroup import find_cgroup, memory_used_bytes, own_limits, read_limits, throttled_seconds
from flatout.machine.cpu import CpuReader, parse_cores, share
from flatout.machine.disk import DiskReader, find_disk, parse_disk
from flatout.machine.gpu import GpuReader, reason_names, visible_cards
from flatout.machine.memory import MemoryReader, parse_meminfo
from flatout.machine.mounts import deepest_mount
from flatout.machine.net import (
    NetReader,
    default_interface,
    interface_names,
    interface_to,
    link_bits_per_second,
    parse_traffic,
)
from flatout.machine.processes import ProcessTree, parse_cpu_seconds, parse_pages

GB = 10**9

# --- cpu --------------------------------------------------------------------------------------------------------------

STAT = """cpu  30 0 10 160 0 0 0 0 0 0
cpu0 20 0 10 70 0 0 0 0 0 0
cpu1 10 0 0 85 5 0 0 0 7 0
intr 5 0
ctxt 99
"""


def test_cores_are_read_without_the_total_and_without_guest_time() -> None:
    assert parse_cores(STAT) == {0: (20, 0, 10, 70, 0, 0, 0, 0), 1: (10, 0, 0, 85, 5, 0, 0, 0)}


def test_a_share_of_ticks_is_none_without_a_past_or_a_present() -> None:
    before, after = (0, 0, 0, 0), (30, 0, 0, 70)
    assert share(before, after, 3) == 0.7
    assert share(None, after, 3) is None
    assert share(before, None, 3) is None
    assert share(after, after, 3) is None, "no tick passed: nothing is known"
    assert share((0, 0, 0, 10, 5), (0, 0, 0, 20, 4), 3, 4) == 1.0, "iowait ran backwards"


def test_the_first_reading_has_no_use_and_the_second_has_one_for_each_core() -> None:
    reader = CpuReader(ProcessTree(), own_limits())
    first = reader.read(None)
    assert first["cpu"] is None
    assert first["process_cores"] is None
    busy_until = psutil.cpu_times().user + 0.2
    while psutil.cpu_times().user < busy_until:
        pass
    second = reader.read(0.2)
    names = [f"cpu{core}" for core in sorted(os.sched_getaffinity(0))]
    assert list(second)[-len(names) :] == names
    assert all(0 <= second[name] <= 1 for name in ("cpu", *names))
    assert second["process_cores"] > 0


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_process_name_with_brackets_and_spaces_hides_nothing() -> None:
    fields = " ".join(["S", *["0"] * 10, "150", "50", *["0"] * 30])
    assert parse_cpu_seconds(f"12 (a) b (c)) {fields}") == 200 / os.sysconf("SC_CLK_TCK")
    assert parse_cpu_seconds(None) is None
    assert parse_cpu_seconds("") is None


def test_private_and_shared_pages() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    assert parse_pages("1000 300 100 1 0 500 0") == (200 * page, 100 * page)
    assert parse_pages(None) is None


def test_children_of_children_are_in_the_tree_and_their_shared_pages_count_once() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            tree = ProcessTree(child.pid)
            grandchild = psutil.Process(child.pid).children()[0]
            assert sorted(tree.pids()) == sorted([child.pid, grandchild.pid])
            together = sum(tree.memory_bytes() or ())
            each = [psutil.Process(pid).memory_info() for pid in tree.pids()]
            assert max(info.rss for info in each) <= together < sum(info.rss for info in each)
        finally:
            child.communicate(b"\n")


def test_a_tree_whose_processes_ended_is_unknown_not_zero() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        tree = ProcessTree(child.pid)
        tree.pids()
    assert tree.memory_bytes() is None
    assert tree.cores(1.0) is None


# --- cgroup -----------------------------------------------------------------------------------------------------------


def mount(kind: str, root: str, point: Path | str, options: str) -> str:
    return f"30 20 0:25 {root} {point} rw,nosuid shared:9 - {kind} {kind} {options}\n"


def test_version_2_walks_up_from_the_own_cgroup() -> None:
    found = find_cgroup("memory", "0::/a.slice/b.service\n", mount("cgroup2", "/", "/sys/fs/cgroup", "rw"))
    assert found is not None
    assert found.version == 2
    assert found.folders == ("/sys/fs/cgroup/a.slice/b.service", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup")


@pytest.mark.parametrize(
    ("path", "root"), [("/", "/"), ("/docker/4f", "/docker/4f"), ("/../../outside", "/"), ("/docker/4fe", "/docker/4f")]
)
def test_in_a_container_the_mount_point_is_the_own_cgroup(path: str, root: str) -> None:
    found = find_cgroup("memory", f"0::{path}\n", mount("cgroup2", root, "/sys/fs/cgroup", "rw"))
    assert found is not None
    assert found.folders == ("/sys/fs/cgroup",)


def test_a_controller_of_version_1_comes_before_version_2() -> None:
    mounts = mount("cgroup", "/", "/sys/fs/cgroup/memory", "rw,memory") + mount("cgroup2", "/", "/unified", "rw")
    assert find_cgroup("memory", "4:memory:/job\n0::/\n", mounts).folders[0] == "/sys/fs/cgroup/memory/job"
    assert find_cgroup("cpu", "4:memory:/job\n0::/\n", mounts).folders == ("/unified",)
    assert find_cgroup("memory", None, None) is None
    assert find_cgroup("memory", "4:memory:/job\n", "") is None


def test_the_lowest_limit_on_the_way_up_is_in_force(tmp_path: Path) -> None:
    own = tmp_path / "pod" / "container"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (own / "cpu.max").write_text("150000 100000\n")
    (own.parent / "memory.max").write_text(f"{8 * GB}\n")
    (own.parent / "cpu.max").write_text("max 100000\n")
    limits = read_limits("0::/pod/container\n", mount("cgroup2", "/", tmp_path, "rw"))
    assert (limits.memory_bytes, limits.memory_folder) == (8 * GB, str(own.parent))
    assert (limits.cpu_cores, limits.cpu_folder) == (1.5, str(own))


def test_limits_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    mounts = mount("cgroup", "/", tmp_path, "rw,memory") + mount("cgroup", "/", tmp_path, "rw,cpu,cpuacct")
    cgroups = "4:memory:/\n2:cpu,cpuacct:/\n"
    assert read_limits(cgroups, mounts).memory_bytes is None
    assert read_limits(cgroups, mounts).cpu_cores is None
    (tmp_path / "memory.limit_in_bytes").write_text("2000000000\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("50000\n")
    assert read_limits(cgroups, mounts).memory_bytes == 2 * GB
    assert read_limits(cgroups, mounts).cpu_cores == 0.5


def test_file_pages_that_can_be_dropped_are_not_used_memory(tmp_path: Path) -> None:
    assert memory_used_bytes(str(tmp_path)) is None
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory_used_bytes(str(tmp_path)) == 1000
    (tmp_path / "memory.stat").write_text("anon 300\nfile 700\nactive_inactive_file 5\ninactive_file 400\n")
    assert memory_used_bytes(str(tmp_path)) == 600


def test_throttled_time_in_both_versions(tmp_path: Path) -> None:
    assert throttled_seconds(str(tmp_path)) is None
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nthrottled_usec 2500000\n")
    assert throttled_seconds(str(tmp_path)) == 2.5
    (tmp_path / "cpu.stat").write_text("nr_throttled 9\nthrottled_time 3000000000")
    assert throttled_seconds(str(tmp_path)) == 3.0


# --- memory -----------------------------------------------------------------------------------------------------------


def test_meminfo_in_bytes() -> None:
    assert parse_meminfo("MemTotal:  16 kB\nHugePages_Total:  3\nbroken\nName:\tpython\n")["MemTotal"] == 16384
    assert parse_meminfo(None) == {}


def test_free_memory_in_a_container_is_what_its_limit_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    limits = read_limits("0::/\n", mount("cgroup2", "/", tmp_path, "rw"))
    tree = ProcessTree()
    tree.pids()
    row = MemoryReader(tree, limits).read(None)
    assert row["memory_free_bytes"] == 3000
    assert row["cgroup_memory_bytes"] == 2000
    assert row["rss_peak_bytes"] >= row["rss_bytes"] > row["rss_private_bytes"] > 0


# --- disk -------------------------------------------------------------------------------------------------------------


def test_disk_counters() -> None:
    found = parse_disk("  10 0 2000 5 20 0 4000 9 0 1500 14 0 0 0 0 0 0\n")
    assert (found.read_bytes, found.written_bytes, found.busy_seconds) == (1_024_000, 2_048_000, 1.5)
    assert parse_disk(None) is None
    assert parse_disk("1 2 3") is None


def test_what_is_no_disk_has_no_columns(tmp_path: Path) -> None:
    assert find_disk(Path("/proc/self")) is None
    reader = DiskReader({"data": Path("/proc/self"), "run": Path("/proc")})
    assert reader.describe() == {"data": None, "run": None}
    assert reader.read(1.0) == {}


def test_two_paths_on_one_disk_share_its_columns(tmp_path: Path) -> None:
    disk = find_disk(tmp_path)
    if disk is None:
        pytest.skip("the temporary folder is on no disk that the kernel counts")
    reader = DiskReader({"data": tmp_path, "run": tmp_path / "not" / "made" / "yet"})
    assert reader.describe() == {"data": disk[0], "run": disk[0]}
    assert reader.read(None) == {f"disk_{disk[0]}_{name}": None for name in ("read_bytes", "written_bytes", "busy")}
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    with (tmp_path / "file").open("rb") as file:
        os.fsync(file.fileno())
    row = reader.read(1.0)
    assert row[f"disk_{disk[0]}_written_bytes"] >= 1 << 20
    assert 0 <= row[f"disk_{disk[0]}_busy"] <= 1


def test_the_deepest_mount_names_the_disk() -> None:
    mounts = (
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:40 /@data /data rw shared:2 - btrfs /dev/nvme1n1 rw\n"
        "29 28 0:41 / /data/nfs rw - nfs4 server:/x rw\n"
    )
    assert deepest_mount("/data/set", mounts)[1] == "/dev/nvme1n1"
    assert deepest_mount("/database", mounts)[1] == "/dev/vda"
    assert deepest_mount("/data/nfs/set", mounts)[1] == "server:/x"


# --- network ----------------------------------------------------------------------------------------------------------


def test_traffic_of_each_interface() -> None:
    text = (
        "Inter-|   Receive   |  Transmit\n face |bytes packets|bytes\n"
        "    lo: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\neth0:30 1 0 0 0 0 0 0 40 1 0 0 0 0 0 0\n"
    )
    assert parse_traffic(text) == {"lo": (20, 10), "eth0": (40, 30)}


def test_the_default_route_with_the_lowest_metric_wins() -> None:
    header = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    wifi = "wlan0 00000000 0101A8C0 0003 0 0 600 00000000 0 0 0\n"
    wire = "eth1 00000000 010200C0 0003 0 0 100 00000000 0 0 0\n"
    half = "tun0 00000000 00000000 0001 0 0 0 00000080 0 0 0\n"  # 0.0.0.0/1 of a VPN is not the default route
    assert default_interface(header + wifi + wire + half) == "eth1"
    assert default_interface(header) is None
    assert default_interface(None) is None


def test_loopback_is_found_by_address_and_a_name_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("localhost") == "lo"

    def refuse(*_: object) -> None:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert interface_to("bucket.example.com") == interface_to(None)


def test_a_link_without_a_speed_is_unknown() -> None:
    assert link_bits_per_second("lo") is None
    assert link_bits_per_second("nowhere0") is None


def test_bytes_through_the_training_interface_are_counted() -> None:
    reader = NetReader("lo")
    assert "lo" in interface_names()
    assert reader.describe()["interface"] == "lo"
    assert reader.read(None)["nic_lo_sent_bytes"] is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.sendto(bytes(50_000), one.getsockname())
    row = reader.read(1.0)
    assert row["nic_lo_sent_bytes"] >= 50_000
    assert row["nic_lo_received_bytes"] >= 50_000


# --- gpu --------------------------------------------------------------------------------------------------------------


class FakeNvml(types.SimpleNamespace):
    """Two cards: one tells everything, the other nothing."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def __getattr__(self, name: str) -> object:
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetName": "T4",
            "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=87),
            "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=3 * GB, total=16 * GB),
            "nvmlDeviceGetPowerUsage": 68_500,
            "nvmlDeviceGetEnforcedPowerLimit": 70_000,
            "nvmlDeviceGetClockInfo": 1200,
            "nvmlDeviceGetMaxClockInfo": 1590,
            "nvmlDeviceGetTemperature": 81,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x24,
        }

        def call(handle: object = None, *_: object) -> object:
            if handle == "silent" or name not in answers:
                raise self.NVMLError(f"{name}: not supported")
            return answers[name]

        if name in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"):
            return lambda which: {0: "talks", 1: "silent"}.get(which, which)
        return call


def test_cards_that_a_child_may_be_given() -> None:
    nvml = FakeNvml(nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}")
    assert visible_cards({}, nvml) == ["GPU-talks", "GPU-silent"]
    assert visible_cards({"CUDA_VISIBLE_DEVICES": "3, GPU-x"}, nvml) == ["3", "GPU-x"]
    assert visible_cards({"CUDA_VISIBLE_DEVICES": ""}, nvml) == []
    assert visible_cards({"CUDA_VISIBLE_DEVICES": "-1"}, nvml) == []

    def no_driver() -> None:
        raise FakeNvml.NVMLError("driver not loaded")

    assert visible_cards({}, FakeNvml(nvmlInit=no_driver)) == []


def test_every_figure_of_a_card_in_our_units() -> None:
    reader = GpuReader(["talks"], FakeNvml())
    assert reader.read(None) == {
        "gpu0_utilization": 0.87,
        "gpu0_memory_bytes": 3 * GB,
        "gpu0_power_watts": 68.5,
        "gpu0_sm_clock_mhz": 1200,
        "gpu0_temperature_celsius": 81,
        "gpu0_throttle": "power_cap+thermal",
    }
    assert reader.describe() == {
        "gpus": [{"name": "T4", "memory_bytes": 16 * GB, "sm_clock_max_mhz": 1590, "power_limit_watts": 70.0}]
    }


def test_a_card_that_tells_nothing_has_blanks_beside_one_that_does() -> None:
    row = GpuReader(None, FakeNvml()).read(None)
    assert row["gpu0_utilization"] == 0.87
    silent = [value for name, value in row.items() if name.startswith("gpu1_")]
    assert silent == [None] * 6


def test_figures_that_mean_not_available_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=255)
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=2**64 - 1, total=0)
    row = GpuReader(["talks"], nvml).read(None)
    assert row["gpu0_utilization"] is None
    assert row["gpu0_memory_bytes"] is None


def test_reasons_have_names_and_idle_is_none() -> None:
    assert reason_names(0) == "none"
    assert reason_names(1) == "none"
    assert reason_names(0x48) == "hardware_slowdown+hardware_thermal"
