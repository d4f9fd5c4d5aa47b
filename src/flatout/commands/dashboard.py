"""What the dashboard shows of all runs: the list, row by row, and what may be done to one of them.

Reads run directories only, and of them what changed. `Board` is called from threads of the server, one at a time."""

import math
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.analysis.live import live_figures
from flatout.analysis.values import flattened
from flatout.config.schema import CostConfig
from flatout.cost import load_catalogue, spend_rates
from flatout.errors import FlatoutError, RunDirectoryError
from flatout.machine.budgets import usable_cores
from flatout.reports.live_page import runs_shell as runs_shell
from flatout.reports.live_page import static_file as static_file
from flatout.runs.directory import RunDirectory
from flatout.runs.following import NO_STEPS, read_recent
from flatout.runs.glance import Glance, RunIndex

_CONFIG_SECONDS = 0.02  # of a look at the list
_MOST_KEPT = 4  # choices of columns
_IDLE_FACTOR = 1500.0
_BUSY = 0.75  # of the cores
Row = dict[str, Any]


def pause_seconds(used_seconds: float) -> float:
    """To leave the machine alone after so much of a core was used: looking takes a fifteen-hundredth of the machine, or
    of one core where all are busy: there all threads of a step wait for the one whose core it took."""
    cores = usable_cores()
    return _IDLE_FACTOR / (1 if os.getloadavg()[0] > _BUSY * cores else cores) * used_seconds


class Board:
    """All runs under some folders, for looking at."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots = [folder.resolve() for folder in folders]
        self._index = RunIndex(folders)
        self._lock = threading.RLock()
        self._rates: dict[str, tuple[dict[str, Any], float | None]] = {}  # with the recipe it is of
        self._keys: tuple[list[int], list[str]] = ([], [])  # of which recipes, by their identity
        self._rows: dict[tuple[str, ...], dict[str, tuple[Glance, bool, Row]]] = {}

    def rows(self, columns: Sequence[str] = (), most_seconds: float = math.inf) -> tuple[list[Row], int]:
        """Every run as a row, newest first, and how many are still to come: runs that are new are read for at most so
        long. `columns` are keys of recipes that are wanted, too. A row that did not change is the same object."""
        with self._lock:
            found = self._index.refresh(most_seconds)
            unknown = self._read_some_configs(found, min(most_seconds, math.inf if columns else _CONFIG_SECONDS))
            before = self._rows.pop(tuple(columns), {})
            kept = {each.key: self._kept_row(each, columns, before.get(each.key)) for each in found}
            self._rows[tuple(columns)] = kept
            while len(self._rows) > _MOST_KEPT:
                del self._rows[next(iter(self._rows))]
            return [row for _, _, row in kept.values()], self._index.unread + (unknown if columns else 0)

    def config_keys(self) -> list[str]:
        """Keys of recipes in which the runs differ: what may be grouped by."""
        with self._lock:
            known = [
                config for each in self._index.refresh(0.0) if (config := self._index.known_config(each)) is not None
            ]
            if [*map(id, known)] != self._keys[0]:
                seen: dict[str, set[str]] = {}
                for config in known:
                    for key, value in flattened(config).items():
                        seen.setdefault(key, set()).add(str(value))
                differing = sorted(key for key, values in seen.items() if len(values) > 1 and key != "name")
                self._keys = ([*map(id, known)], differing)
            return self._keys[1]

    def glance(self, key: str) -> Glance:
        """RunDirectoryError where there is no such run."""
        with self._lock:
            return self._index.find(key)

    def config(self, glance: Glance) -> dict[str, Any]:
        """config.yaml of a run; no keys where it cannot be read."""
        with self._lock:
            return self._index.config(glance)

    def stop(self, key: str) -> int:
        """Ask the run's process to save a checkpoint and end; its number. Refused where no process of this machine
        holds the run."""
        with self._lock:
            directory = RunDirectory(self._index.find(key).directory)
        owner = directory.owner()
        if owner is None:
            raise RunDirectoryError(
                f"no process on this machine holds {directory.root}: it has ended, or runs elsewhere"
            )
        os.kill(owner, signal.SIGTERM)
        return owner

    def usd_per_second(self, glance: Glance) -> float | None:
        """What the machines of a run cost; None where no price is set."""
        with self._lock:
            config = self._index.config(glance)
            if self._rates.get(glance.key, (None, None))[0] is not config:
                self._rates[glance.key] = (config, _usd_per_second(config))
            return self._rates[glance.key][1]

    def files(self, pattern: str) -> list[Path]:
        """Other files under the folders of runs."""
        return [path for root in self._roots for path in sorted(root.glob(pattern)) if path.is_file()]

    def _read_some_configs(self, found: Sequence[Glance], most_seconds: float) -> int:
        """A few at a time: a thousand recipes take more than a second to parse, and the list must come at once. How
        many are left."""
        until = time.monotonic() + most_seconds
        unknown = [each for each in found if self._index.known_config(each) is None]
        for number, each in enumerate(unknown):
            if time.monotonic() > until:
                return len(unknown) - number
            self._index.config(each)
        return 0

    def _kept_row(
        self, glance: Glance, columns: Sequence[str], before: tuple[Glance, bool, Row] | None
    ) -> tuple[Glance, bool, Row]:
        """As before, where neither the run nor what is known of its recipe changed."""
        known = self._index.known_config(glance) is not None
        if before is not None and before[0] is glance and before[1] == known and glance.status != "running":
            return before
        return glance, known, self._row(glance, columns)

    def _row(self, glance: Glance, columns: Sequence[str]) -> Row:
        running = glance.status == "running"
        recent, rate = NO_STEPS, None
        if running:
            rate = self.usd_per_second(glance)
            with suppress(FlatoutError):
                recent = read_recent(RunDirectory(glance.directory).steps)
        figures = live_figures(glance.summary, recent, glance.status, rate, time.time())
        config = self._index.known_config(glance)
        values = {} if config is None or not columns else flattened(config)
        return {
            "key": glance.key,
            "name": glance.name,
            "label": glance.label,
            "directory": str(glance.directory),
            "status": glance.status,
            "cause": glance.cause,
            "emulated": bool((glance.summary.get("device") or {}).get("emulated")),
            "updated_unix": glance.updated_unix,
            **figures.to_dict(),
            "config": {name: None if values.get(name) is None else str(values[name]) for name in columns},
        }


def _usd_per_second(config: dict[str, Any]) -> float | None:
    with suppress(FlatoutError, ValueError):
        cost = CostConfig.model_validate(config.get("cost") or {})
        rates = spend_rates(cost, load_catalogue(cost.prices))
        return None if rates is None else rates.usd_per_second
    return None
