"""What the dashboard shows, as values and markup: the list of runs, one run while it goes on, comparisons, what-if.

Reads run directories only. `Board` is called from the server's threads, one call at a time; what is expensive is made
anew only when its files changed, and never takes more than a twentieth of the time."""

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.analysis.details import read_details
from flatout.analysis.live import Alarm, alarms, live_figures
from flatout.analysis.rank_spans import read_rank_spans
from flatout.analysis.values import flattened
from flatout.commands.explain import explain
from flatout.config.schema import CostConfig
from flatout.cost import load_catalogue, spend_rates
from flatout.errors import FlatoutError, RunDirectoryError
from flatout.reports.html import report_sections
from flatout.reports.live_page import live_curves, live_headline, live_tiles, log_tail, ranks_view
from flatout.reports.notebook import live_html
from flatout.reports.page import note, paragraph, section
from flatout.runs import Run, read_run
from flatout.runs.directory import RunDirectory
from flatout.runs.following import StepFollower, StretchedCurves, read_tail, read_thinned
from flatout.runs.glance import Glance, RunIndex
from flatout.runs.reading import read_epochs
from flatout.untrusted import MAX_TABLE_BYTES, open_text

_WHOLE_BYTES = 32 << 20  # of steps and spans: a longer run is not read whole again and again
_TICK_SECONDS = 0.5
_IDLE_FACTOR = 20.0
_CONFIG_SECONDS = 0.02  # of a look at the list
_MOST_FOLLOWED = 32
PLACES = (
    *("damage", "tiles", "findings", "curves", "time", "epochs", "ranks", "timeline", "machine", "cost", "answers"),
    *("log", "files", "setup"),
)
"""The parts of a run's page from top to bottom, below its head."""


@dataclass
class _Watched:
    """One run that somebody looks at."""

    follower: StepFollower
    fragments: dict[str, Markup] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    urgent: dict[str, str] = field(default_factory=dict)
    looked: float = 0.0
    signature: tuple[Any, ...] = ()
    due: float = 0.0
    """When what is expensive may be made again."""


class Board:
    """All runs under some folders, for looking at."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots = [folder.resolve() for folder in folders]
        self._index = RunIndex(folders)
        self._lock = threading.RLock()
        self._watched: dict[str, _Watched] = {}
        self._tails: dict[str, StepFollower] = {}
        self._rates: dict[str, float | None] = {}

    def rows(self, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Every run as a row, newest first; `columns` are keys of recipes that are wanted, too."""
        with self._lock:
            found = self._index.refresh()
            self._read_some_configs(found)
            alive = {each.key for each in found if each.status == "running"}
            self._tails = {key: tail for key, tail in self._tails.items() if key in alive}
            return [self._row(each, columns) for each in found]

    def config_keys(self) -> list[str]:
        """Keys of recipes in which the runs differ: what may be grouped by."""
        with self._lock:
            seen: dict[str, set[str]] = {}
            for each in self._index.refresh():
                for key, value in flattened(self._index.known_config(each) or {}).items():
                    seen.setdefault(key, set()).add(str(value))
            return sorted(key for key, values in seen.items() if len(values) > 1 and key != "name")

    def glance(self, key: str) -> Glance:
        """RunDirectoryError where there is no such run."""
        with self._lock:
            return self._index.find(key)

    def fragments(self, key: str) -> tuple[dict[str, Markup], list[Alarm]]:
        """The parts of a run's page by their name, and its alarms. A run that is gone or damaged says so."""
        with self._lock:
            try:
                glance = self._index.find(key)
            except RunDirectoryError as error:
                self._watched.pop(key, None)
                return {"head": note(str(error), "bad")}, []
            watched = self._watch(key, glance)
            now = time.monotonic()
            if now - watched.looked >= _TICK_SECONDS:
                watched.looked = now
                self._look_or_say(glance, watched)
            return watched.fragments, watched.alarms

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

    def curves(self, glance: Glance) -> StretchedCurves:
        """Of a run's steps, as far as they were read."""
        with self._lock:
            watched = self._watch(glance.key, glance)
            with suppress(FlatoutError):
                watched.follower.advance()
            return watched.follower.curves

    def usd_per_second(self, glance: Glance) -> float | None:
        """What the machines of a run cost; None where no price is set."""
        if glance.key not in self._rates:
            rate = None
            with suppress(FlatoutError, ValueError):
                cost = CostConfig.model_validate(self._index.config(glance).get("cost") or {})
                rates = spend_rates(cost, load_catalogue(cost.prices))
                rate = None if rates is None else rates.usd_per_second
            self._rates[glance.key] = rate
        return self._rates[glance.key]

    def small_view(self, key: str) -> str:
        """A run in a few lines, for a notebook."""
        glance = self.glance(key)
        rate = self.usd_per_second(glance) if glance.status == "running" else None
        with self._lock:
            watched = self._watch(key, glance)
            watched.follower.advance()
            figures = live_figures(glance.summary, watched.follower.recent(), glance.status, rate, time.time())
            return live_html(glance.name, figures, watched.follower.curves)

    def files(self, pattern: str) -> list[Path]:
        """Other files under the folders of runs."""
        return [path for root in self._roots for path in sorted(root.glob(pattern)) if path.is_file()]

    # Rows

    def _read_some_configs(self, found: Sequence[Glance]) -> None:
        """A few at a time: a thousand recipes take seconds to parse, and the list must come at once."""
        until = time.monotonic() + _CONFIG_SECONDS
        for each in found:
            if self._index.known_config(each) is None:
                self._index.config(each)
                if time.monotonic() > until:
                    return

    def _row(self, glance: Glance, columns: Sequence[str]) -> dict[str, Any]:
        recent = self._recent(glance)
        rate = self.usd_per_second(glance) if glance.status == "running" else None
        figures = live_figures(glance.summary, recent, glance.status, rate, time.time())
        config = self._index.known_config(glance)
        values = {} if config is None or not columns else flattened(config)
        return {
            "key": glance.key,
            "name": glance.name,
            "directory": str(glance.directory),
            "status": glance.status,
            "cause": glance.cause,
            "emulated": bool((glance.summary.get("device") or {}).get("emulated")),
            "updated_unix": glance.updated_unix,
            **figures.to_dict(),
            "config": {name: None if values.get(name) is None else str(values[name]) for name in columns},
        }

    def _recent(self, glance: Glance) -> Any:
        tail = self._tails.get(glance.key)
        if tail is None:
            tail = StepFollower(RunDirectory(glance.directory).steps)
            if glance.status != "running":
                return tail.recent()
            self._tails[glance.key] = tail
        with suppress(FlatoutError):
            tail.advance()
        return tail.recent()

    # One run

    def _watch(self, key: str, glance: Glance) -> _Watched:
        watched = self._watched.pop(key, None) or _Watched(StepFollower(RunDirectory(glance.directory).steps))
        self._watched[key] = watched  # the last one is the one looked at last
        while len(self._watched) > _MOST_FOLLOWED:
            del self._watched[next(iter(self._watched))]
        return watched

    def _look_or_say(self, glance: Glance, watched: _Watched) -> None:
        """What cannot be read of a run is a note on its page, not the end of it."""
        watched.fragments["damage"] = Markup("")
        try:
            self._look(glance, watched)
        except (FlatoutError, OSError, ValueError) as error:
            watched.fragments["damage"] = note(str(error), "bad")

    def _look(self, glance: Glance, watched: _Watched) -> None:
        directory, running = RunDirectory(glance.directory), glance.status == "running"
        directory.require_own_files()
        first = "tiles" not in watched.fragments
        watched.follower.advance()
        recent = watched.follower.recent()
        rate = self.usd_per_second(glance) if running else None
        figures = live_figures(glance.summary, recent, glance.status, rate, time.time())
        budget = (self._index.config(glance).get("stop") or {}).get("max_usd")
        watched.alarms = alarms(figures, recent, glance.status, budget, time.time(), watched.urgent)
        emulated = bool((glance.summary.get("device") or {}).get("emulated"))
        epochs = read_epochs(directory)
        curves = live_curves(watched.follower.curves, epochs, watched.follower.is_sampled)
        watched.fragments |= {
            "head": live_headline(glance.name, glance.status, glance.cause, emulated, watched.alarms),
            "tiles": live_tiles(figures, running),
            "curves": section("Curves", curves, anchor="curves"),
            "log": section("Log", log_tail(read_tail(directory.log)), anchor="log"),
        }
        if not first:  # what takes longer comes with the next push
            self._look_closely(glance, watched)

    def _look_closely(self, glance: Glance, watched: _Watched) -> None:
        signature, began = _signature(glance.directory), time.monotonic()
        if signature == watched.signature or began < watched.due:
            return
        watched.signature = signature
        watched.fragments |= self._close_sections(glance, watched)
        watched.due = time.monotonic() + _IDLE_FACTOR * (time.monotonic() - began)

    def _close_sections(self, glance: Glance, watched: _Watched) -> dict[str, Markup]:
        directory = RunDirectory(glance.directory)
        whole = _recorded_bytes(directory) <= _WHOLE_BYTES
        run = read_run(glance.directory) if whole else _without_steps(glance, self._index.config(glance))
        details = read_details(run, with_spans=whole, system=read_thinned(directory.system))
        if whole and len(run.steps) > 2:
            explanation = explain(run)
            watched.urgent = {each.id: each.title for each in explanation.findings if each.urgent}
            found = [each.to_dict() for each in explanation.findings]
            details = replace(details, findings=found, diagnosis=explanation.verdict)
        sections = {anchor: content for anchor, _, content in report_sections(details) if anchor != "curves"}
        if details.diagnosis:
            sections["findings"] = section(
                "What holds it back", paragraph(details.diagnosis, "lead"), anchor="verdict"
            ) + (sections.get("findings") or Markup(""))
        if not whole:
            told = f"This run is long: flatout report {glance.directory} writes its ledger by epoch and its timeline."
            sections["timeline"] = section("Timeline", paragraph(told, "dim"), anchor="timeline")
        files = sorted(directory.spans.glob("rank*.jsonl"), key=lambda path: (len(path.name), path.name))
        ranks = {number: read_rank_spans(path) for number, path in enumerate(files)} if whole and len(files) > 1 else {}
        sections["ranks"] = section("Ranks", ranks_view(ranks, _lateness(directory)), anchor="ranks")
        return sections


def _recorded_bytes(directory: RunDirectory) -> int:
    files = [directory.steps, *directory.spans.glob("rank*.jsonl")]
    return sum(path.stat().st_size for path in files if path.exists())


def _signature(root: Path) -> tuple[Any, ...]:
    directory = RunDirectory(root)
    paths = (directory.summary, directory.steps, directory.rank_spans(), directory.system, directory.config)
    return tuple((path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None for path in paths)


def _without_steps(glance: Glance, config: Mapping[str, Any]) -> Run:
    directory = RunDirectory(glance.directory)
    epochs = read_epochs(directory)
    summary = {**glance.summary, "status": glance.status, "cause": glance.cause}
    return Run(glance.directory, summary, dict(config), {}, [], epochs)


def _lateness(directory: RunDirectory) -> str:
    """Which rank was last how often over the last steps; empty where steps.csv does not say."""
    rows = [line.split(",") for line in read_tail(directory.steps, 1 << 13).splitlines()]
    with suppress(FlatoutError, OSError, ValueError):
        with open_text(directory.steps, MAX_TABLE_BYTES, "replace") as file:
            header = file.readline(4096).strip().split(",")
        at = header.index("slowest_rank")
        last = [row[at] for row in rows if len(row) == len(header) and row[at].isdecimal()]
        if last:
            slowest = max(set(last), key=last.count)
            return f"Rank {slowest} came last in {last.count(slowest)} of the last {len(last)} steps."
    return ""
