"""CPU time: of each core, of the machine, and of this process with its workers."""

import os
import platform
from typing import Any

from flatout.machine.cgroup import Limits, throttled_seconds
from flatout.machine.files import read_text
from flatout.machine.processes import ProcessTree
from flatout.machine.sampler import Cell

_IDLE, _IOWAIT, _STEAL = 3, 4, 7
_COUNTED = 8  # guest time, which follows, is part of user time already


def cpu_name() -> str:
    """The model name of the processor."""
    lines = (read_text("/proc/cpuinfo") or "").splitlines()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def cpu_flags() -> set[str]:
    """What the processor says that it can do, in Linux's words; empty elsewhere."""
    lines = (read_text("/proc/cpuinfo") or "").splitlines()
    flags = (line.split(":", 1)[1] for line in lines if line.startswith(("flags", "Features")))
    return set(next(flags, "").split())


def parse_cores(text: str | None) -> dict[int, tuple[int, ...]]:
    """Ticks of each core from /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    cores = {}
    for line in (text or "").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit():
            cores[int(name[3:])] = tuple(int(each) for each in ticks[:_COUNTED])
    return cores


def share(before: tuple[int, ...] | None, after: tuple[int, ...] | None, *fields: int) -> float | None:
    """Part of the ticks between two readings that these fields took."""
    if before is None or after is None:
        return None
    passed = [max(0, new - old) for old, new in zip(before, after, strict=False)]  # iowait is known to run backwards
    total = sum(passed)
    return None if not total else sum(passed[at] for at in fields if at < len(passed)) / total


class CpuReader:
    """Use of the cores, by this process and by all."""

    def __init__(self, tree: ProcessTree, limits: Limits) -> None:
        self._tree = tree
        self._limit_cores = limits.cpu_cores
        self._folder = limits.cpu_folder if limits.cpu_cores is not None else None
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._before: dict[int, tuple[int, ...]] = {}
        self._throttled_before: float | None = None

    def describe(self) -> dict[str, Any]:
        return {"cores": len(self._cores) or None, "cpu_limit_cores": self._limit_cores}

    def read(self, interval_seconds: float | None) -> dict[str, Cell]:
        ticks = parse_cores(read_text("/proc/stat"))
        idle = {core: share(self._before.get(core), ticks.get(core), _IDLE, _IOWAIT, _STEAL) for core in self._cores}
        use = {core: None if value is None else 1 - value for core, value in idle.items()}
        row: dict[str, Cell] = {
            "cpu": _mean(list(use.values())),
            "cpu_iowait": _mean([share(self._before.get(core), ticks.get(core), _IOWAIT) for core in self._cores]),
            "cpu_steal": _mean([share(self._before.get(core), ticks.get(core), _STEAL) for core in self._cores]),
            "process_cores": _rounded(self._tree.cores(interval_seconds)),
            "process_waiting_cores": _rounded(self._tree.waiting_cores(interval_seconds)),
            "cpu_throttled_seconds": self._throttled(),
        }
        self._before = ticks
        return row | {f"cpu{core}": _rounded(value) for core, value in use.items()}

    def _throttled(self) -> float | None:
        """Since the last row; None without a quota."""
        now = None if self._folder is None else throttled_seconds(self._folder)
        before, self._throttled_before = self._throttled_before, now
        return None if now is None or before is None else round(max(0.0, now - before), 4)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
