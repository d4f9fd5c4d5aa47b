"""How much memory and disk flatout may take for what it can make again, and where it keeps it."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

_processes = 1  # of one run on this machine, which share its cores and memory
_MEMORY_SHARE, _DISK_SHARE = 0.5, 0.5  # of what is free: the rest belongs to the model, the page cache and others


def memory_budget_bytes() -> int:
    """Half of what this process may still take: free memory, or less in a container."""
    free = psutil.virtual_memory().available
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = (Path(name).read_text(encoding="ascii").strip() for name in (limit_file, used_file))
        except OSError:
            continue
        if limit.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return int(free * _MEMORY_SHARE / _processes)


def share_machine(processes: int) -> None:
    """Several ranks of a run are on this machine: each plans with its share."""
    global _processes
    _processes = processes


def usable_cores() -> int:
    """Cores this process may use: its affinity, or fewer where a container's quota says so; its share among ranks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return max(1, cores // _processes)
    allowed = cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    return max(1, allowed // _processes)


def disk_budget_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return int(psutil.disk_usage(str(folder)).free * _DISK_SHARE)


def kept_bytes(folder: Path) -> int:
    """What is in a folder already, and so need not fit the budget again."""
    with suppress(OSError):
        return sum(item.stat().st_size for item in os.scandir(folder) if item.is_file(follow_symlinks=False))
    return 0


def cache_folder() -> Path:
    """Where flatout keeps what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flatout"
