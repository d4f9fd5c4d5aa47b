"""The machine while a script runs: the same monitors as of flatout's own runs."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flatout.machine import Cell, Monitor, SystemReader
from flatout.machine.cgroup import own_limits
from flatout.machine.cpu import CpuReader
from flatout.machine.disk import DiskReader
from flatout.machine.gpu import GpuReader
from flatout.machine.memory import MemoryReader
from flatout.machine.net import NetReader
from flatout.machine.processes import ProcessTree
from flatout.runs.directory import RunDirectory
from flatout.runs.system import SYSTEM_COLUMNS, SystemTotals
from flatout.runs.tables import Table


class Watch:
    """Rows of system.csv and the summary's sections. The process tree is this process and all it started."""

    def __init__(self, directory: RunDirectory, clock: Callable[[], float]) -> None:
        self._totals = SystemTotals()
        self._table = Table(directory.system, SYSTEM_COLUMNS)
        self._lock = threading.Lock()
        self._notes: list[str] = []
        tree, limits = ProcessTree(), own_limits()
        folders = {"data": directory.root.parent, "run": directory.root}
        readers: dict[str, Callable[[], SystemReader]] = {
            "cpu": lambda: CpuReader(tree, limits),
            "memory": lambda: MemoryReader(tree, limits),
            "disk": lambda: DiskReader(folders),
            "net": lambda: NetReader(None),
        }
        if _has_gpu():
            readers["gpu"] = GpuReader
        self._monitor = Monitor(readers, self._write, self._notes.append, clock)

    def start(self) -> None:
        self._monitor.start()

    def stop(self) -> None:
        self._monitor.stop()

    def close(self) -> None:
        self._monitor.stop()
        self._table.close()

    def sections(self) -> dict[str, Any]:
        described = self._monitor.description
        with self._lock:
            host = self._totals.host(described)
            use = self._totals.device_use()
            network = self._totals.network(described.get("net", {}))
        if not host["gpus"]:
            use |= {"memory_peak_bytes": host["rss_peak_bytes"], "memory_peak_of": "process tree"}
        return {"device_use": use, "network": network, "host": host}

    def _write(self, row: dict[str, Cell]) -> None:
        whole = {"attempt": 1, **row}
        with self._lock:
            self._table.append(whole)
            self._totals.add(whole)


def _has_gpu() -> bool:
    with suppress(Exception):
        GpuReader()
        return True
    return False
