"""From the rows of system.csv to the summary's device_use, network and host: one row at a time, over all attempts."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flatout.untrusted import number

SYSTEM_COLUMNS = ("attempt", "seconds", "time_unix", "interval_seconds")
"""The first columns of every system.csv; those that follow depend on the machine (docs/monitors.md)."""

_PEAK_SECONDS = 0.1  # a rate over less is noise
_MOST = 1e18  # of a reading, in whatever unit: an exabyte


@dataclass
class _Column:
    """What is kept of one column: enough for means over time, sums and extremes."""

    total: float = 0.0
    weighted: float = 0.0
    weight_seconds: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    peak_per_second: float | None = None

    def add(self, value: float, interval_seconds: float) -> None:
        self.total += value
        self.weighted += value * interval_seconds
        self.weight_seconds += interval_seconds
        self.low, self.high = min(self.low, value), max(self.high, value)
        if interval_seconds >= _PEAK_SECONDS:
            self.peak_per_second = max(self.peak_per_second or 0.0, value / interval_seconds)

    @property
    def mean(self) -> float | None:
        return self.weighted / self.weight_seconds if self.weight_seconds else None


class SystemTotals:
    """What a run's rows say so far. A column that never had a value gives None."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._columns: dict[str, _Column] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        interval_seconds = _reading(row.get("interval_seconds")) or 0.0
        for name, cell in row.items():
            value = _reading(cell)
            if value is not None and name not in SYSTEM_COLUMNS:
                self._columns.setdefault(name, _Column()).add(value, interval_seconds)

    def device_use(self) -> dict[str, Any]:
        """Means over all GPUs of the run; memory is the most that any one of them held."""
        return {
            "utilization_mean": self._mean_of(r"gpu\d+_utilization"),
            "memory_peak_bytes": _whole(self._high_of(r"gpu\d+_memory_bytes")),
            "power_watts_mean": self._mean_of(r"gpu\d+_power_watts"),
            "temperature_max_celsius": self._high_of(r"gpu\d+_temperature_celsius"),
        }

    def network(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Of the interface that training uses."""
        name = description.get("interface")
        ways = [self._columns.get(f"nic_{name}_{way}_bytes") for way in ("sent", "received")]
        sent, received = (None if column is None else int(column.total) for column in ways)
        peaks = [column.peak_per_second for column in ways if column and column.peak_per_second is not None]
        return {
            "bytes_sent": sent,
            "bytes_received": received,
            "peak_bits_per_second": 8 * max(peaks) if peaks else None,  # of one way: links carry both at once
            "link_bits_per_second": (description.get("links_bits_per_second") or {}).get(name),
            "interface": name,
        }

    def host(self, descriptions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        cpu, memory = descriptions.get("cpu", {}), descriptions.get("memory", {})
        throttled = self._columns.get("cpu_throttled_seconds")
        return {
            "cores": cpu.get("cores"),
            "cpu_limit_cores": cpu.get("cpu_limit_cores"),
            "cpu_mean": self._mean("cpu"),
            "cpu_max_core": max(self._means(r"cpu\d+"), default=None),
            "cpu_iowait_mean": self._mean("cpu_iowait"),
            "cpu_steal_mean": self._mean("cpu_steal"),
            "cpu_throttled_seconds": throttled.total if throttled else None,
            "process_cores_mean": self._mean("process_cores"),
            "rss_peak_bytes": _whole(self._high_of("rss_peak_bytes")),
            "memory_total_bytes": memory.get("memory_total_bytes"),
            "memory_limit_bytes": memory.get("memory_limit_bytes"),
            "memory_free_min_bytes": self._low("memory_free_bytes"),
            "swap_peak_bytes": _whole(self._high_of("swap_used_bytes")),
            "shm_total_bytes": memory.get("shm_total_bytes"),
            "shm_peak_bytes": _whole(self._high_of("shm_used_bytes")),
            "disks": {role: self._disk(name) for role, name in descriptions.get("disk", {}).items()},
            "gpus": list(descriptions.get("gpu", {}).get("gpus", [])),
        }

    def _disk(self, name: str | None) -> dict[str, Any]:
        read, written = (self._columns.get(f"disk_{name}_{way}_bytes") for way in ("read", "written"))
        return {
            "device": name,
            "read_bytes": int(read.total) if read else None,
            "written_bytes": int(written.total) if written else None,
            "read_peak_bytes_per_second": read.peak_per_second if read else None,
            "busy_mean": self._mean(f"disk_{name}_busy"),
        }

    def _mean(self, name: str) -> float | None:
        return self._columns[name].mean if name in self._columns else None

    def _means(self, pattern: str) -> list[float]:
        return [mean for column in self._matching(pattern) if (mean := column.mean) is not None]

    def _mean_of(self, pattern: str) -> float | None:
        means = self._means(pattern)
        return sum(means) / len(means) if means else None

    def _low(self, name: str) -> int | None:
        return _whole(self._columns[name].low) if name in self._columns else None

    def _high_of(self, pattern: str) -> float | None:
        return max((column.high for column in self._matching(pattern)), default=None)

    def _matching(self, pattern: str) -> list[_Column]:
        return [column for name, column in self._columns.items() if re.fullmatch(pattern, name)]


def _reading(cell: object) -> float | None:
    """None for what no monitor reads: the totals are what the next reader of the summary counts on."""
    value = number(cell)
    return value if value is not None and 0 <= value <= _MOST else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
