"""Many runs at a glance: what a list needs, from their small files, read again only where those changed."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import DirEntry, scandir, stat
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


class RunIndex:
    """All runs under some folders. `refresh` looks what changed; a run is only ever found by its key, so that no
    address can lead out of the folders."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._summaries: dict[Path, tuple[Signature, dict[str, Any], str | None]] = {}
        self._configs: dict[Path, tuple[Signature, dict[str, Any]]] = {}
        self._glances: dict[str, Glance] = {}

    def refresh(self) -> list[Glance]:
        """Every run as it is now, newest first."""
        found = {key: self._look(key, path) for key, path in self._find()}
        self._glances = found
        known = {each.directory for each in found.values()}
        self._summaries = {path: kept for path, kept in self._summaries.items() if path in known}
        self._configs = {path: kept for path, kept in self._configs.items() if path in known}
        return sorted(found.values(), key=lambda each: -(each.updated_unix or 0.0))

    def find(self, key: str) -> Glance:
        """RunDirectoryError where no run has this key (any more)."""
        known = self._glances.get(key)
        if known is None or not RunDirectory(known.directory).exists:
            self.refresh()
            known = self._glances.get(key)
        if known is None:
            raise RunDirectoryError(f"no run {key!r} under {', '.join(map(str, self._roots))}")
        return self._look(key, known.directory)

    def config(self, glance: Glance) -> dict[str, Any]:
        """config.yaml of a run; no keys where it cannot be read. Takes some milliseconds the first time."""
        path = glance.directory / "config.yaml"
        signature = _signature(path)
        kept = self._configs.get(glance.directory)
        if kept is None or kept[0] != signature:
            kept = (signature, _read_config(path))
            self._configs[glance.directory] = kept
        return kept[1]

    def known_config(self, glance: Glance) -> dict[str, Any] | None:
        """As `config`, where it was read before."""
        kept = self._configs.get(glance.directory)
        return None if kept is None else kept[1]

    def _find(self) -> Iterator[tuple[str, Path]]:
        for number, root in enumerate(self._roots):
            if (root / "config.yaml").exists():
                yield f"{number}/.", root
            else:
                yield from ((f"{number}/{path.relative_to(root)}", path) for path in _runs_below(root, _DEPTH))

    def _look(self, key: str, path: Path) -> Glance:
        directory = RunDirectory(path)
        summary, damage = self._summary(directory)
        updated = max(_changed_unix(directory.summary), _changed_unix(directory.steps)) or None
        if damage is not None:
            return Glance(key, path, "failed", damage, {}, updated)
        status, cause = str(summary.get("status", "running")), summary.get("cause")
        if status == "running" and not _goes_on(directory):
            status, cause = "failed", KILLED
        return Glance(key, path, status, cause, summary, updated)

    def _summary(self, directory: RunDirectory) -> tuple[dict[str, Any], str | None]:
        signature = _signature(directory.summary)
        kept = self._summaries.get(directory.root)
        if kept is None or kept[0] != signature:
            try:
                kept = (signature, read_summary(directory), None)
            except (UserError, OSError) as error:
                kept = (signature, {}, str(error))
            self._summaries[directory.root] = kept
        return kept[1], kept[2]


def _goes_on(directory: RunDirectory) -> bool:
    """A lock that nobody holds was let go by the kernel when its process ended; but locks of another machine (a mount,
    a copy that is kept up to date) are not seen here, only that the files are new."""
    if directory.in_use():
        return True
    newest = max(map(_changed_unix, (directory.steps, directory.system, directory.summary)))
    return time.time() - newest < _FRESH_SECONDS and _recorded_host(directory) != platform.node()


def _recorded_host(directory: RunDirectory) -> str:
    with suppress(UserError, OSError):
        return str(read_json(directory.environment).get("host"))
    return ""


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with scandir(folder) as found:
            entries: list[DirEntry[str]] = sorted(found, key=lambda each: each.name)
    except OSError:
        return
    for entry in entries:
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=True):
                continue
            path = Path(entry.path)
            if (path / "config.yaml").exists():
                yield path
            elif depth > 1:
                yield from _runs_below(path, depth - 1)


def _signature(path: Path) -> Signature:
    try:
        about = stat(path)
    except OSError:
        return (0, 0, 0)
    return (about.st_mtime_ns, about.st_size, about.st_ino)


def _changed_unix(path: Path) -> float:
    return _signature(path)[0] / 1e9


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = read_yaml(path)
        if isinstance(values, dict):
            check_config(values, path)
            return values
    except (UserError, OSError):
        pass
    return {}
