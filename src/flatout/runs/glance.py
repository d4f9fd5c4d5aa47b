"""Many runs at a glance: what a list needs, from their small files, read again only where those changed."""

import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import DirEntry, scandir, stat
from os.path import exists
from pathlib import Path
from typing import Any

from flatout.errors import RunDirectoryError, UserError
from flatout.runs.directory import RunDirectory, read_json
from flatout.runs.reading import read_summary
from flatout.runs.rebuilding import KILLED
from flatout.runs.schema import check_config
from flatout.untrusted import read_yaml

_DEPTH = 2  # a suite's runs are one folder further down
_FRESH_SECONDS = 120.0
"""A run whose lock is held elsewhere (another machine, a copy) goes on while its files are newer than this."""
Signature = tuple[int, int, int]


@dataclass(frozen=True)
class Glance:
    """One run in a list. `summary` is summary.json as it stands; `status` what is the case now."""

    key: str
    """Stands for the run in addresses: the number of its root and its path below it."""
    directory: Path
    status: str
    cause: str | None
    summary: Mapping[str, Any] = field(default_factory=dict)
    updated_unix: float | None = None
    """When a step or a summary was last written."""

    @property
    def name(self) -> str:
        return str(self.summary.get("run") or self.directory.name)

    @property
    def label(self) -> str:
        """Its place below the folder of runs: several runs of one recipe have the same name."""
        place = self.key.partition("/")[2]
        return self.name if place == "." else place


@dataclass
class _Kept:
    """What was read of a run. `path` is a text: a thousand Paths made anew would take longer than all the looking."""

    path: str
    signature: Signature
    """Of summary.json when it was read."""
    summary: dict[str, Any]
    damage: str | None
    glance: Glance | None = None
    config: tuple[Signature, dict[str, Any]] | None = None

    def is_current(self, signature: Signature) -> bool:
        """Whether the glance holds: a run that has ended, or cannot be read, stays so while its summary does."""
        ended = self.damage is not None or self.summary.get("status", "running") != "running"
        return ended and self.signature == signature and self.glance is not None


class RunIndex:
    """All runs under some folders. `refresh` looks what changed; a run is only ever found by its key, so that no
    address can lead out of the folders."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._kept: dict[str, _Kept] = {}
        self.unread = 0
        """Runs that the last `refresh` found and had no time to read."""

    def refresh(self, most_seconds: float = math.inf) -> list[Glance]:
        """Every run as it is now, newest first. What is new is read for at most so long, the newest first; the rest
        comes with the next call. A run that did not change is the same object as before."""
        found = {key: (path, _signature(f"{path}/summary.json")) for key, path in self._find()}
        until, read = time.monotonic() + most_seconds, 0
        self._kept = {key: kept for key, kept in self._kept.items() if key in found}
        self.unread = 0
        for key, (path, signature) in sorted(found.items(), key=lambda each: -each[1][1][0]):
            kept = self._kept.get(key)
            if kept is not None and kept.is_current(signature):
                continue
            if kept is None and read and time.monotonic() > until:
                self.unread += 1
            else:
                self._look(key, path, signature)
                read += kept is None
        known = [each.glance for each in self._kept.values() if each.glance is not None]
        return sorted(known, key=lambda each: -(each.updated_unix or 0.0))

    def find(self, key: str) -> Glance:
        """RunDirectoryError where no run has this key (any more)."""
        kept = self._kept.get(key)
        if kept is None or not exists(f"{kept.path}/config.yaml"):
            self.refresh()
            kept = self._kept.get(key)
        if kept is None:
            raise RunDirectoryError(f"no run {key!r} under {', '.join(map(str, self._roots))}")
        signature = _signature(f"{kept.path}/summary.json")
        return kept.glance if kept.glance and kept.is_current(signature) else self._look(key, kept.path, signature)

    def config(self, glance: Glance) -> dict[str, Any]:
        """config.yaml of a run; no keys where it cannot be read. Takes a millisecond or two the first time."""
        kept = self._kept.get(glance.key)
        if kept is None:
            return {}
        signature = _signature(f"{kept.path}/config.yaml")
        if kept.config is None or kept.config[0] != signature:
            kept.config = (signature, _read_config(glance.directory / "config.yaml"))
        return kept.config[1]

    def known_config(self, glance: Glance) -> dict[str, Any] | None:
        """As `config`, where it was read before."""
        kept = self._kept.get(glance.key)
        return None if kept is None or kept.config is None else kept.config[1]

    def _find(self) -> Iterator[tuple[str, str]]:
        for number, root in enumerate(map(str, self._roots)):
            if exists(f"{root}/config.yaml"):
                yield f"{number}/.", root
            else:
                yield from (
                    (f"{number}/{path[len(root) :].lstrip(chr(47))}", path) for path in _runs_below(root, _DEPTH)
                )

    def _look(self, key: str, path: str, signature: Signature) -> Glance:
        kept = self._kept.get(key)
        if kept is None or kept.signature != signature:
            config = None if kept is None else kept.config
            if config is not None and config[0] != _signature(f"{path}/config.yaml"):
                config = None  # another run under the same name
            kept = self._kept[key] = _Kept(path, signature, *_read_summary(path), config=config)
        kept.glance = _glance(key, kept)
        return kept.glance


def _read_summary(path: str) -> tuple[dict[str, Any], str | None]:
    """And what keeps it from being read."""
    try:
        return read_summary(RunDirectory(Path(path))), None
    except (UserError, OSError) as error:
        return {}, str(error)


def _glance(key: str, kept: _Kept) -> Glance:
    path, summary = Path(kept.path), kept.summary
    updated = max(kept.signature[0], _signature(f"{kept.path}/steps.csv")[0]) / 1e9 or None
    if kept.damage is not None:
        return Glance(key, path, "failed", kept.damage, {}, updated)
    status, cause = str(summary.get("status", "running")), summary.get("cause")
    if status == "running" and not _goes_on(RunDirectory(path)):
        status, cause = "failed", KILLED
    return Glance(key, path, status, cause, summary, updated)


def _goes_on(directory: RunDirectory) -> bool:
    """A lock that nobody holds was let go by the kernel when its process ended; but locks of another machine (a mount,
    a copy that is kept up to date) are not seen here, only that the files are new."""
    if directory.in_use():
        return True
    newest = max(_signature(path)[0] for path in (directory.steps, directory.system, directory.summary)) / 1e9
    return time.time() - newest < _FRESH_SECONDS and _recorded_host(directory) != platform.node()


def _recorded_host(directory: RunDirectory) -> str:
    with suppress(UserError, OSError):
        return str(read_json(directory.environment).get("host"))
    return ""


def _runs_below(folder: str, depth: int) -> Iterator[str]:
    try:
        with scandir(folder) as found:
            entries: list[DirEntry[str]] = sorted(found, key=lambda each: each.name)
    except OSError:
        return
    for entry in entries:
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=True):
                continue
            if exists(f"{entry.path}/config.yaml"):
                yield entry.path
            elif depth > 1:
                yield from _runs_below(entry.path, depth - 1)


def _signature(path: str | Path) -> Signature:
    try:
        about = stat(path)
    except OSError:
        return (0, 0, 0)
    return (about.st_mtime_ns, about.st_size, about.st_ino)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = read_yaml(path)
        if isinstance(values, dict):
            check_config(values, path)
            return values
    except (UserError, OSError):
        pass
    return {}
