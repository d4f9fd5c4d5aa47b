"""One run on the dashboard while it goes on: the parts of its page, made anew when its files changed.

What costs more is made less often (`pause_seconds`). Loads what explains runs, which the list does without."""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.analysis.details import read_details
from flatout.analysis.live import Alarm, alarms, live_figures
from flatout.analysis.rank_spans import read_rank_spans
from flatout.commands.dashboard import Board, pause_seconds
from flatout.commands.explain import explain
from flatout.errors import FlatoutError, RunDirectoryError
from flatout.reports.html import finding_sections, report_sections
from flatout.reports.live_page import live_curves, live_headline, live_tiles, log_tail, ranks_view
from flatout.reports.notebook import live_html
from flatout.reports.page import note, paragraph, section
from flatout.runs import Run, read_run
from flatout.runs.directory import RunDirectory
from flatout.runs.following import StepFollower, StretchedCurves, read_tail, read_thinned
from flatout.runs.glance import Glance
from flatout.runs.reading import read_epochs
from flatout.untrusted import MAX_TABLE_BYTES, open_text

_WHOLE_BYTES = 32 << 20  # of steps and spans: a longer run is not read whole again and again
_TICK_SECONDS = 0.5
_MOST_PAUSE_SECONDS = 9.0  # the push after it comes within ten
_MOST_FOLLOWED = 32


@dataclass
class _Watched:
    """One run that somebody looks at."""

    follower: StepFollower
    fragments: dict[str, Markup] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    urgent: dict[str, str] = field(default_factory=dict)
    due: float = 0.0
    """When it may be looked at again."""
    drawn: tuple[Any, ...] = ()
    """What its curves are of, beside its steps."""
    signature: tuple[Any, ...] = ()
    close_due: float = 0.0
    """When what is expensive may be made again."""


class WatchedRuns:
    """The runs of a board that somebody looks at. Called from the server's threads, one call at a time."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def fragments(self, key: str) -> tuple[dict[str, Markup], list[Alarm]]:
        """The parts of a run's page by their name, and its alarms. A run that is gone or damaged says so."""
        with self._lock:
            try:
                glance = self.board.glance(key)
            except RunDirectoryError as error:
                self._watched.pop(key, None)
                return {"head": note(str(error), "bad")}, []
            watched = self._watch(key, glance)
            if time.monotonic() >= watched.due:
                self._look_or_say(glance, watched)
            return watched.fragments, watched.alarms

    def curves(self, glance: Glance) -> StretchedCurves:
        """Of a run's steps, as far as they were read."""
        with self._lock:
            watched = self._watch(glance.key, glance)
            with suppress(FlatoutError):
                watched.follower.advance()
            return watched.follower.curves

    def small_view(self, key: str) -> str:
        """A run in a few lines, for a notebook."""
        glance = self.board.glance(key)
        rate = self.board.usd_per_second(glance) if glance.status == "running" else None
        with self._lock:
            watched = self._watch(key, glance)
            watched.follower.advance()
            figures = live_figures(glance.summary, watched.follower.recent(), glance.status, rate, time.time())
            return live_html(glance.name, figures, watched.follower.curves)

    def _watch(self, key: str, glance: Glance) -> _Watched:
        watched = self._watched.pop(key, None) or _Watched(StepFollower(RunDirectory(glance.directory).steps))
        self._watched[key] = watched  # the last one is the one looked at last
        while len(self._watched) > _MOST_FOLLOWED:
            del self._watched[next(iter(self._watched))]
        return watched

    def _look_or_say(self, glance: Glance, watched: _Watched) -> None:
        """What cannot be read of a run is a note on its page, not the end of it."""
        watched.fragments["damage"] = Markup("")
        first, began = "tiles" not in watched.fragments, time.thread_time()
        watched.due = time.monotonic() + _TICK_SECONDS
        try:
            self._look(glance, watched)
            if not first:  # what takes longer comes with the next push
                watched.due += min(_MOST_PAUSE_SECONDS, pause_seconds(time.thread_time() - began))
                self._look_closely(glance, watched)
        except (FlatoutError, OSError, ValueError) as error:
            watched.fragments["damage"] = note(str(error), "bad")

    def _look(self, glance: Glance, watched: _Watched) -> None:
        directory, running = RunDirectory(glance.directory), glance.status == "running"
        directory.require_own_files()
        drawn = (glance.status, _stamp(directory.epochs))
        moved = watched.follower.advance() or drawn != watched.drawn
        recent = watched.follower.recent()
        rate = self.board.usd_per_second(glance) if running else None
        figures = live_figures(glance.summary, recent, glance.status, rate, time.time())
        budget = (self.board.config(glance).get("stop") or {}).get("max_usd")
        watched.alarms = alarms(figures, recent, glance.status, budget, time.time(), watched.urgent)
        emulated = bool((glance.summary.get("device") or {}).get("emulated"))
        if moved:
            curves = live_curves(watched.follower.curves, read_epochs(directory), watched.follower.is_sampled)
            watched.fragments["curves"] = section("Curves", curves, anchor="curves")
            watched.drawn = drawn
        watched.fragments |= {
            "head": live_headline(glance.label, glance.name, glance.status, glance.cause, emulated, watched.alarms),
            "tiles": live_tiles(figures, running),
            "log": section("Log", log_tail(read_tail(directory.log)), anchor="log"),
        }

    def _look_closely(self, glance: Glance, watched: _Watched) -> None:
        signature, began = (glance.status, *_signature(glance.directory)), time.thread_time()
        if signature == watched.signature or (glance.status == "running" and time.monotonic() < watched.close_due):
            return
        watched.signature = signature
        watched.fragments |= self._close_sections(glance, watched)
        watched.close_due = time.monotonic() + pause_seconds(time.thread_time() - began)

    def _close_sections(self, glance: Glance, watched: _Watched) -> dict[str, Markup]:
        directory = RunDirectory(glance.directory)
        whole = _recorded_bytes(directory) <= _WHOLE_BYTES
        run = read_run(glance.directory) if whole else _without_steps(glance, self.board.config(glance))
        details = read_details(run, with_spans=whole, system=read_thinned(directory.system))
        if whole and len(run.steps) > 2:
            explanation = explain(run)
            watched.urgent = {each.id: each.title for each in explanation.findings if each.urgent}
            found = [each.to_dict() for each in explanation.findings]
            details = replace(details, findings=found, diagnosis=explanation.verdict)
        sections = {anchor: content for anchor, _, content in report_sections(details) if anchor != "curves"}
        if details.diagnosis:
            said = [paragraph(details.diagnosis, "lead"), *finding_sections(details.findings)]
            sections["findings"] = section("What holds it back", *said, anchor="findings")
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
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        about = path.stat()
        return about.st_mtime_ns, about.st_size
    return None


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
