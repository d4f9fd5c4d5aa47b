"""How much memory and disk flatout may take for what it can make again, and where it keeps it."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

from flatout.errors import ConfigError
from flatout.machine.cgroup import memory_used_bytes, own_limits
from flatout.units import format_bytes

_processes = 1  # of one run on this machine, which share its cores and memory
_MEMORY_SHARE, _DISK_SHARE = 0.5, 0.5  # of what is free: the rest belongs to the model, the page cache and others


def memory_budget_bytes() -> int:
    """Half of what this process may still take: free memory, or less in a container."""
    free, limits = psutil.virtual_memory().available, own_limits()
    if limits.memory_bytes is not None and limits.memory_folder is not None:
        used = memory_used_bytes(limits.memory_folder)
        free = min(free, max(0, limits.memory_bytes - (used or 0)))
    return int(free * _MEMORY_SHARE / _processes)


def share_machine(processes: int) -> None:
    """Several ranks of a run are on this machine: each plans with its share."""
    global _processes
    _processes = processes


def fit_batches(budget_bytes: int, batch_bytes: int, prefetch: int) -> tuple[int, int]:
    """How many batches to prepare ahead, at most `prefetch`, and the bytes that are left for a cache.

    Two more batches are alive besides those ahead: the one that trains, and the one the device may still copy from.
    """
    most = budget_bytes // batch_bytes - 2
    if most < 1:
        raise ConfigError(
            f"data.memory leaves {format_bytes(budget_bytes)} but one batch is {format_bytes(batch_bytes)} and 3 must "
            f"fit; set data.memory to at least {format_bytes(3 * batch_bytes)} more, or use a smaller data.batch_size"
        )
    kept = min(prefetch, most)
    return kept, budget_bytes - (kept + 2) * batch_bytes


def usable_cores() -> int:
    """Cores this process may use: its affinity, or fewer where a container's quota says so; its share among ranks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = own_limits().cpu_cores
    allowed = cores if quota is None else max(1, min(cores, round(quota)))
    return max(1, allowed // _processes)


def disk_budget_bytes(folder: Path) -> int:
    """What caches and staged data may take of the disk that holds `folder`."""
    return int(free_bytes(folder) * _DISK_SHARE)


def free_bytes(folder: Path) -> int:
    """Room on the disk, or in the memory, that holds `folder`, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return psutil.disk_usage(str(folder)).free


def kept_bytes(folder: Path) -> int:
    """What is in a folder already, and so need not fit the budget again."""
    with suppress(OSError):
        return sum(item.stat().st_size for item in os.scandir(folder) if item.is_file(follow_symlinks=False))
    return 0


def cache_folder() -> Path:
    """Where flatout keeps what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flatout"
