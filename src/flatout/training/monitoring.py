"""Starts the monitors of one attempt and turns their rows into system.csv and the summary's sections."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from flatout.config.schema import Config
from flatout.decisions import Choice
from flatout.decisions.compute import check_monitored_interface, choose_monitored_interface
from flatout.decisions.loading import is_url
from flatout.engine.devices import Device
from flatout.engine.parallel.joining import devices_per_node
from flatout.machine import Cell, Monitor, SystemReader
from flatout.machine.budgets import cache_folder
from flatout.machine.cgroup import own_limits
from flatout.machine.cpu import CpuReader
from flatout.machine.disk import DiskReader
from flatout.machine.gpu import GpuReader
from flatout.machine.memory import MemoryReader
from flatout.machine.net import NetReader, interface_names, interface_to
from flatout.machine.processes import ProcessTree
from flatout.runs.directory import RunDirectory
from flatout.runs.system import SYSTEM_COLUMNS, SystemTotals
from flatout.runs.tables import Table, read_table
from flatout.storage.credentials import s3_endpoint


class OwnGpu:
    """Reads the GPU of a rank besides rank 0, on whatever machine, and keeps the rows until rank 0 asks for them."""

    def __init__(self, config: Config, device: Device, rank: int) -> None:
        self._device = device
        self._rows: list[dict[str, Cell]] = []  # appended to by the monitor's thread
        self._interval_seconds = config.monitor.interval_seconds
        self._uuids, self._rank = _uuids(config, device), rank
        self._monitor: Monitor | None = None

    def start(self, clock: Callable[[], float], note: Callable[[str], None]) -> None:
        if self._interval_seconds is not None and self._uuids:
            readers = {"gpu": lambda: GpuReader(self._uuids, first=self._rank)}
            self._monitor = Monitor(readers, self._rows.append, note, clock, self._interval_seconds).start()

    def take(self) -> dict[str, Any]:
        """What came since the last call, for `SystemRecords.add_rank`."""
        described = self._monitor.description.get("gpu", {}) if self._monitor is not None else {}
        rows = [self._rows.pop(0) for _ in range(len(self._rows))]
        return {"rows": rows, "gpus": described.get("gpus", []), "tensors": self._device.memory_peak_bytes()}

    def stop(self) -> None:
        if self._monitor is not None:
            self._monitor.stop()


class SystemRecords:
    """The monitors of one run, this attempt's and what earlier ones wrote. None with the monitor off."""

    def __init__(self, directory: RunDirectory, config: Config, device: Device, attempt: int) -> None:
        self._directory = directory
        self._config = config
        self._device = device
        self._attempt = attempt
        self._totals = SystemTotals([*read_table(directory.system), *read_table(directory.other_gpus)])
        self._table = Table(directory.system, SYSTEM_COLUMNS)
        self._others_table = Table(directory.other_gpus, ("rank", *SYSTEM_COLUMNS))
        self._others: dict[int, dict[str, Any]] = {}  # the newest that each rank said of its GPU
        self._lock = threading.Lock()  # rows come from the monitor's thread
        self._monitor: Monitor | None = None
        self.rank_interface: str | None = None  # that leads to the other ranks, where there are any
        self.near_pids: tuple[int, ...] = ()  # ranks on this machine

    def start(self, clock: Callable[[], float], note: Callable[[str], None]) -> None:
        interval = self._config.monitor.interval_seconds
        if interval is not None:
            self._monitor = Monitor(self._readers(), self._write, note, clock, interval).start()

    def stop(self) -> None:
        if self._monitor is not None:
            self._monitor.stop()

    def follow(self) -> None:
        """The run's directory is another one now."""
        with self._lock:
            self._table.follow(self._directory.system)
            self._others_table.follow(self._directory.other_gpus)

    def close(self) -> None:
        self.stop()
        self._table.close()
        self._others_table.close()

    def add_rank(self, rank: int, said: Mapping[str, Any]) -> None:
        """What `OwnGpu.take` gave on another rank: a GPU that nobody here can see."""
        self._others[rank] = {"gpus": said["gpus"], "tensors": said["tensors"]}
        for row in said["rows"]:
            whole = {"rank": rank, "attempt": self._attempt, **row}
            self._others_table.append(whole)
            with self._lock:
                self._totals.add(whole)

    def sections(self, busy_fraction: float | None) -> dict[str, Any]:
        """Parts of summary.json, over all attempts; null where there is no reading."""
        described = self._monitor.description if self._monitor is not None else {}
        with self._lock:
            host = self._totals.host(described)
            host["gpus"] += [gpu for rank in sorted(self._others) for gpu in self._others[rank]["gpus"]]
            network = self._totals.network(described.get("net", {}))
            use = {"busy_fraction": busy_fraction, **self._totals.device_use(), "memory_peak_of": "device"}
        if self._device.kind == "cpu":
            use |= {"memory_peak_bytes": host["rss_peak_bytes"], "memory_peak_of": "process tree"}
        elif (tensors := self._device.memory_peak_bytes()) is not None:
            peaks = [tensors, *(said["tensors"] for said in self._others.values() if said["tensors"] is not None)]
            use |= {"memory_peak_bytes": max(peaks), "memory_peak_of": "tensors"}
        return {"device_use": use, "network": network, "host": host}

    def interface(self) -> Choice[str | None]:
        """Whose traffic counts as that of the training."""
        data = self._config.data.path
        return choose_monitored_interface(
            self._config.monitor.interface, self.rank_interface, lambda: interface_to(_store_host(data))
        )

    def _write(self, row: dict[str, Cell]) -> None:
        whole = {"attempt": self._attempt, **row}
        with self._lock:
            self._table.append(whole)
            self._totals.add(whole)

    def _readers(self) -> dict[str, Callable[[], SystemReader]]:
        tree, limits, data = ProcessTree(), own_limits(), self._config.data.path
        held = cache_folder() if is_url(data) else Path(os.path.expanduser(data))  # remote data is staged there
        folders = {"data": held, "run": self._directory.root}
        readers: dict[str, Callable[[], SystemReader]] = {
            "cpu": lambda: CpuReader(ProcessTree(*self.near_pids) if len(self.near_pids) > 1 else tree, limits),
            "memory": lambda: MemoryReader(tree, limits),
            "disk": lambda: DiskReader(folders),
            "net": lambda: NetReader(self.interface().value),
        }
        if uuids := _uuids(self._config, self._device):
            readers["gpu"] = lambda: GpuReader(uuids)
        return readers


def _uuids(config: Config, device: Device) -> list[str]:
    """The GPUs that this process computes on. By UUID: NVML's numbers know nothing of CUDA_VISIBLE_DEVICES."""
    if device.kind != "cuda":
        return []
    cards = range(devices_per_node(config)) if config.parallel.mode == "dp" else [device.torch]
    return [f"GPU-{torch.cuda.get_device_properties(card).uuid}" for card in cards]


def check_interface(config: Config) -> None:
    """Refuse a monitor.interface that this machine does not have."""
    check_monitored_interface(config.monitor.interface, interface_names())


def _store_host(path: str) -> str | None:
    """Where the data comes from, as far as it is known without asking anybody."""
    endpoint = s3_endpoint({}, os.environ) if path.startswith("s3://") else None
    return None if endpoint is None else urlsplit(endpoint).hostname
