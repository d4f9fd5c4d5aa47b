"""Bytes and busy time of the disks that hold the data and the run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.machine.files import read_text
from flatout.machine.mounts import deepest_mount
from flatout.machine.sampler import Cell

_SECTOR_BYTES = 512  # of these counters, whatever the disk's own sectors are


@dataclass(frozen=True)
class DiskCounters:
    """Since boot."""

    read_bytes: int
    written_bytes: int
    busy_seconds: float
    """Time with at least one request under way."""


def parse_disk(text: str | None) -> DiskCounters | None:
    """From /sys/dev/block/MAJOR:MINOR/stat."""
    fields = (text or "").split()
    if len(fields) < 10:
        return None
    return DiskCounters(int(fields[2]) * _SECTOR_BYTES, int(fields[6]) * _SECTOR_BYTES, int(fields[9]) / 1000)


def find_disk(path: Path) -> tuple[str, str] | None:
    """Name and counter file of the disk under a path, which need not exist yet; None for what is no local disk."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        number = os.stat(path).st_dev
        if os.major(number) == 0:  # btrfs and others number their own; the mount table names the disk below
            _, source = deepest_mount(os.path.realpath(path), read_text("/proc/self/mountinfo") or "")
            number = os.stat(source).st_rdev if source.startswith("/dev/") else 0
        place = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
        return os.path.basename(os.path.realpath(place, strict=True)), f"{place}/stat"
    except OSError:
        return None


class DiskReader:
    """One set of columns for each disk, however many of the paths it holds."""

    def __init__(self, paths: dict[str, Path]) -> None:
        found = {role: find_disk(path) for role, path in paths.items()}
        self._devices = {role: disk[0] if disk else None for role, disk in found.items()}
        self._files = dict(disk for disk in found.values() if disk)
        self._before: dict[str, DiskCounters | None] = {}

    def describe(self) -> dict[str, Any]:
        """The disk of each path, by what the path is for."""
        return dict(self._devices)

    def read(self, interval_seconds: float | None) -> dict[str, Cell]:
        row: dict[str, Cell] = {}
        for name, file in self._files.items():
            now, before = parse_disk(read_text(file)), self._before.get(name)
            self._before[name] = now
            cells = _since(before, now, interval_seconds)
            row |= {f"disk_{name}_{column}": cells.get(column) for column in ("read_bytes", "written_bytes", "busy")}
        return row


def _since(before: DiskCounters | None, now: DiskCounters | None, interval_seconds: float | None) -> dict[str, Cell]:
    if before is None or now is None or not interval_seconds:
        return {}
    return {
        "read_bytes": now.read_bytes - before.read_bytes,
        "written_bytes": now.written_bytes - before.written_bytes,
        "busy": round(min(1.0, (now.busy_seconds - before.busy_seconds) / interval_seconds), 3),
    }
