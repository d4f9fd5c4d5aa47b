"""Limits that a container or a service manager puts on this process: its own cgroup, in version 1 or 2.

The limit in force is the lowest of the cgroup and all above it, as far up as is visible from here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flatout.machine.files import parse_int, read_int, read_text

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as the largest number of pages


@dataclass(frozen=True)
class Cgroup:
    """One controller's folders, the process's own first, then those above it."""

    version: int
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """What is in force; None where there is no limit or no way to read it. `memory_folder` is whose limit counts."""

    memory_bytes: int | None
    memory_folder: str | None
    cpu_cores: float | None
    cpu_folder: str | None


def find_cgroup(controller: str, cgroups: str | None, mounts: str | None) -> Cgroup | None:
    """Decided from the texts of /proc/self/cgroup and /proc/self/mountinfo."""
    unified = None
    for line in (cgroups or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return _mounted(1, controller, path, mounts or "")
        if number == "0" and not controllers:
            unified = path
    return None if unified is None else _mounted(2, controller, unified, mounts or "")


def _mounted(version: int, controller: str, path: str, mounts: str) -> Cgroup | None:
    wanted = "cgroup" if version == 1 else "cgroup2"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2) if after.count(" ") >= 2 else ("", "", "")
        if kind == wanted and (version == 2 or controller in options.split(",")):
            root, mount_point = before.split(" ")[3:5]
            # without a namespace of its own a container sees its path on the host, and only its own part mounted
            visible = path.startswith(root.rstrip("/") + "/") and "/.." not in path
            parts = [part for part in path[len(root) :].split("/") if part] if visible else []
            folders = ["/".join([mount_point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts), -1, -1)]
            return Cgroup(version, tuple(folders))
    return None


def own_limits() -> Limits:
    """Of the cgroups that this process is in."""
    return read_limits(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"))


def read_limits(cgroups: str | None, mounts: str | None) -> Limits:
    """From the texts of /proc/self/cgroup and /proc/self/mountinfo; None where a limit is not set."""
    memory, cpu = (find_cgroup(name, cgroups, mounts) for name in ("memory", "cpu"))
    memory_bytes, memory_folder = _tightest(memory, _memory_limit)
    cores, cpu_folder = _tightest(cpu, _cpu_limit)
    return Limits(None if memory_bytes is None else int(memory_bytes), memory_folder, cores, cpu_folder)


def _tightest(cgroup: Cgroup | None, limit: Callable[[int, str], float | None]) -> tuple[float | None, str | None]:
    if cgroup is None:
        return None, None
    found = [(value, folder) for folder in cgroup.folders if (value := limit(cgroup.version, folder)) is not None]
    return min(found) if found else (None, cgroup.folders[0])


def _memory_limit(version: int, folder: str) -> float | None:
    value = read_int(f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}")
    return None if value is None or value >= _NO_LIMIT_BYTES else value


def _cpu_limit(version: int, folder: str) -> float | None:
    """Cores: quota over period."""
    if version == 2:
        quota, _, period = (read_text(f"{folder}/cpu.max") or "").partition(" ")
        return _ratio(parse_int(quota), parse_int(period))
    return _ratio(read_int(f"{folder}/cpu.cfs_quota_us"), read_int(f"{folder}/cpu.cfs_period_us"))


def _ratio(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota is not None and quota > 0 and period else None


def memory_used_bytes(folder: str) -> int | None:
    """What the kernel cannot simply drop: usage less the file pages that were not used lately."""
    usage = read_int(f"{folder}/memory.current")
    name = "inactive_file"
    if usage is None:
        usage, name = read_int(f"{folder}/memory.usage_in_bytes"), "total_inactive_file"
    idle = field(read_text(f"{folder}/memory.stat"), name)
    return None if usage is None else max(0, usage - (idle or 0))


def throttled_seconds(folder: str) -> float | None:
    """Total time for which the CPU quota held this cgroup back."""
    text = read_text(f"{folder}/cpu.stat")
    microseconds, nanoseconds = field(text, "throttled_usec"), field(text, "throttled_time")
    if microseconds is not None:
        return microseconds / 1e6
    return None if nanoseconds is None else nanoseconds / 1e9


def field(text: str | None, name: str) -> int | None:
    """The number after a name in lines of `name number`."""
    at = -1 if text is None else ("\n" + text).find(f"\n{name} ")
    if text is None or at < 0:
        return None
    return parse_int(text[at + len(name) + 1 :].partition("\n")[0])
