"""Memory of the machine, of this process with its workers, of its container, and /dev/shm."""

import os
from typing import Any

from flatout.machine.cgroup import Limits, memory_used_bytes
from flatout.machine.files import parse_int, read_text
from flatout.machine.processes import ProcessTree
from flatout.machine.sampler import Cell

SHARED_MEMORY = "/dev/shm"  # noqa: S108


def parse_meminfo(text: str | None) -> dict[str, int]:
    """Bytes by name, from /proc/meminfo or a process's status."""
    found = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        kilobytes = parse_int(value.removesuffix(" kB"))
        if kilobytes is not None:
            found[name] = kilobytes * 1024
    return found


def shared_memory_bytes() -> tuple[int | None, int | None]:
    """Used and total bytes of /dev/shm."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None, None
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_blocks * status.f_frsize


class MemoryReader:
    """Memory of the process tree and of the machine."""

    def __init__(self, tree: ProcessTree, limits: Limits) -> None:
        self._tree = tree
        self._folder = limits.memory_folder
        self._limit_bytes = limits.memory_bytes
        self._peak_bytes: int | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "memory_total_bytes": parse_meminfo(read_text("/proc/meminfo")).get("MemTotal"),
            "memory_limit_bytes": self._limit_bytes,
            "shm_total_bytes": shared_memory_bytes()[1],
        }

    def read(self, interval_seconds: float | None) -> dict[str, Cell]:
        machine = parse_meminfo(read_text("/proc/meminfo"))
        free = machine.get("MemAvailable")
        used = None if self._folder is None else memory_used_bytes(self._folder)
        if self._limit_bytes is not None and used is not None:
            left = max(0, self._limit_bytes - used)
            free = left if free is None else min(free, left)
        swap_total, swap_free = machine.get("SwapTotal"), machine.get("SwapFree")
        private, shared = self._tree.memory_bytes() or (None, 0)
        rss = None if private is None else private + shared
        peaks = (self._peak_bytes, rss, parse_meminfo(read_text("/proc/self/status")).get("VmHWM"))
        self._peak_bytes = max((value for value in peaks if value is not None), default=None)
        return {
            "rss_bytes": rss,
            "rss_private_bytes": private,
            "rss_peak_bytes": self._peak_bytes,  # the kernel saw what this process held between two rows, too
            "memory_free_bytes": free,
            "cgroup_memory_bytes": used,
            "swap_used_bytes": None if swap_total is None or swap_free is None else swap_total - swap_free,
            "shm_used_bytes": shared_memory_bytes()[0],
        }
