"""Successive halving: train all configurations a little, drop the worse ones, go on with the rest."""

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from flatout.commands.ray_jobs import RayCluster
from flatout.commands.training_processes import LocalJob, TrainingProcesses
from flatout.config.loading import config_digest, dump_config, load_config
from flatout.config.schema import Config
from flatout.config.sweep import SweepConfig, configuration_folder, configuration_name, load_sweep
from flatout.config.tasks import Metric, metric_named
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.decisions.compute import cards_of_run, threads_of_job_among_others
from flatout.errors import ConfigError, FlatoutError, Interrupted, RunDirectoryError, RunFailed
from flatout.machine.budgets import usable_cores
from flatout.machine.gpu import visible_cards
from flatout.reports.sweep_page import SweepRow, SweepSummary, sweep_lines, sweep_page
from flatout.runs import Run, RunDirectory, read_run
from flatout.runs.directory import write_json, write_text
from flatout.storage import open_checked
from flatout.sweeping.budget import Budget, parse_budget
from flatout.sweeping.cards import places
from flatout.sweeping.drawing import draw
from flatout.sweeping.halving import JobOutcome, ranked, rung_epochs, survivors
from flatout.sweeping.sharing import sharing_groups
from flatout.sweeping.state import FILE, FinishedRung, SweepState, read_state

_JOB_BYTES = 1_000_000_000  # that a small job takes, for how many fit at the same time
_BEAT_SECONDS = 2.0  # between two writes of the time spent: so much of it a kill -9 forgets
_LEFT_SECONDS = 60.0  # for jobs of a killed sweep to save and end


@dataclass(frozen=True)
class _Candidate:
    """One configuration and its run."""

    changes: dict[str, Any]
    overrides: dict[str, Any]
    config: Config
    directory: RunDirectory
    may_share: bool

    @property
    def name(self) -> str:
        return configuration_name(self.changes)


def run_sweep(
    path: Path, options: Mapping[str, Any], over: list[str], folder: Path | None, fresh: bool, quiet: bool
) -> SweepSummary:
    """The same call goes on where it stopped. Nothing is trained twice."""
    sweep = load_sweep(path, options, over)
    name = sweep.name or f"{sweep.recipe.stem}-sweep"
    folder = folder or Path("runs") / name
    candidates = _candidates(sweep, folder)
    base = candidates[0].config
    rungs = tuple(sweep.rungs or rung_epochs(base.train.epochs, len(candidates), sweep.eta))
    if rungs[-1] > base.train.epochs:
        raise ConfigError(f"--rungs ends at epoch {rungs[-1]} but train.epochs is {base.train.epochs}")
    metric = metric_named(sweep.metric or base.checkpoint.metric)
    if metric.name not in base.spec.metrics and not base.validate_.metrics and sweep.metric is not None:
        raise ConfigError(f"--metric is {metric.name}, but {base.task} has {', '.join(base.spec.metrics)}")
    rate = hourly_rate_usd(base.cost, load_catalogue(base.cost.prices))
    budget = parse_budget(sweep.budget)
    budget.seconds_at(rate)  # one without a price is refused before anything is made
    open_checked(base.data.path).close()
    home = RunDirectory(folder)
    if home.in_use():
        raise RunDirectoryError(f"{folder} is being swept by another process; wait for it, or use another --runs DIR")
    if fresh and folder.exists():
        home.set_aside()
    plan = {
        "recipe": str(sweep.recipe),
        "over": sweep.over,
        "configurations": [[each.directory.root.name, config_digest(each.config)] for each in candidates],
        "rungs": list(rungs),
        "eta": sweep.eta,
        "metric": metric.name,
    }
    state = read_state(folder, json.loads(json.dumps(plan)))
    console = Console(stderr=True, quiet=quiet, highlight=False)
    with _cluster(sweep, base, folder) as cluster:  # first: one that is not there is refused before anything is made
        home.lock()
        try:
            state.write(folder)
            return _Sweep(name, sweep, candidates, rungs, metric, budget, rate, folder, state, cluster, console).run()
        finally:
            home.unlock()


@contextmanager
def _cluster(sweep: SweepConfig, base: Config, folder: Path) -> Iterator[RayCluster | None]:
    """None where jobs train on this machine."""
    if sweep.ray is None:
        yield None
        return
    ranks = base.parallel.devices if isinstance(base.parallel.devices, int) else 1
    cluster = RayCluster(sweep.ray, folder / FILE, ranks, lambda count: cards_of_run(base, count))
    try:
        yield cluster
    finally:
        cluster.close()


def _slots(base: Config, jobs: int | None) -> list[dict[str, str]]:
    """What each of the jobs that train here at the same time has in its environment: its own cards, if it takes any."""
    cards = visible_cards() if cards_of_run(base, 1) else []
    if found := places(cards, lambda count: cards_of_run(base, count), jobs):
        return [{"CUDA_VISIBLE_DEVICES": ",".join(each)} for each in found]
    memory = psutil.virtual_memory().available // _JOB_BYTES
    return [{}] * (jobs or max(1, min(4 * usable_cores(), memory, 16)))


def _candidates(sweep: SweepConfig, folder: Path) -> list[_Candidate]:
    """All are checked before the first trains."""
    found = []
    for number, changes in enumerate(draw(sweep.over, sweep.configs, sweep.seed), 1):
        overrides = {**sweep.set, **changes}
        try:
            loaded = load_config(sweep.recipe, overrides)
        except ConfigError as error:
            raise ConfigError(f"configuration {configuration_name(changes)!r}: {error}") from None
        place = configuration_folder(number, changes)
        may_share = loaded.config.spec.has_images and loaded.origins.get("data.shared") == "default"
        found.append(_Candidate(changes, overrides, loaded.config, RunDirectory(folder / place), may_share))
    return found


class _Sweep:
    """One attempt at a sweep."""

    def __init__(
        self,
        name: str,
        sweep: SweepConfig,
        candidates: list[_Candidate],
        rungs: tuple[int, ...],
        metric: Metric,
        budget: Budget,
        usd_per_hour: float | None,
        folder: Path,
        state: SweepState,
        cluster: RayCluster | None,
        console: Console,
    ) -> None:
        self._name, self._sweep, self._candidates, self._rungs = name, sweep, candidates, rungs
        self._metric, self._budget, self._usd_per_hour = metric, budget, usd_per_hour
        self._folder, self._state, self._console = folder, state, console
        self._most_seconds = budget.seconds_at(usd_per_hour)
        self._launch = cluster.launch if cluster is not None else LocalJob
        slots = [{}] * (sweep.jobs or cluster.jobs) if cluster is not None else _slots(candidates[0].config, sweep.jobs)
        self._jobs, self._free = len(slots), queue.SimpleQueue[dict[str, str]]()
        for slot in slots:
            self._free.put(slot)
        self._over_budget = False

    def run(self) -> SweepSummary:
        interrupted = False
        with TrainingProcesses(self._console, echo=False, launch=self._launch) as processes:
            while len(self._state.rungs) < len(self._rungs) and (field := self._field()):
                outcomes = self._train_rung(field, processes)
                if processes.interrupted:
                    interrupted = not self._over_budget
                    break
                self._decide(outcomes)
        summary = self._summary(interrupted)
        write_text(self._folder / "sweep.html", sweep_page(summary, self._curves()))
        write_json(self._folder / "result.json", summary.to_dict())
        return summary

    def _field(self) -> list[int]:
        """Configurations that train now; none where all failed."""
        done = self._state.rungs
        return list(done[-1].kept) if done else list(range(len(self._candidates)))

    def _train_rung(self, field: list[int], processes: TrainingProcesses) -> list[JobOutcome]:
        number = len(self._state.rungs)
        groups = sharing_groups([self._candidates[at].config for at in field])
        sizes = {field[at]: len(group) for group in groups for at in group}
        order = [field[at] for group in groups for at in group]
        together = min(self._jobs, len(order))
        self._console.print(
            f"rung {number + 1} of {len(self._rungs)}: {len(field)} configuration(s) to epoch {self._rungs[number]}, "
            f"{together} at a time; batches are shared within {len(groups)} group(s) of equal data settings",
            markup=False,
            soft_wrap=True,
        )
        began, earlier = time.monotonic(), self._state.spent_seconds
        done = threading.Event()
        beat = threading.Thread(target=self._keep_time, args=(began, earlier, processes, done))
        beat.start()
        try:
            with ThreadPoolExecutor(together) as threads:
                return list(threads.map(lambda at: self._train(at, number, sizes[at], processes), order))
        finally:
            done.set()
            beat.join()

    def _keep_time(self, began: float, earlier: float, processes: TrainingProcesses, done: threading.Event) -> None:
        """Write the time spent, and stop the jobs when the budget is spent."""
        while True:
            ended = done.wait(_BEAT_SECONDS)
            self._state.spent_seconds = earlier + time.monotonic() - began
            self._state.write(self._folder)
            if ended:
                return
            if self._most_seconds is not None and self._state.spent_seconds >= self._most_seconds:
                self._over_budget = True
                processes.stop()

    def _train(self, at: int, rung: int, group: int, processes: TrainingProcesses) -> JobOutcome:
        """To the end of the rung, if it is not there already."""
        candidate, epochs = self._candidates[at], self._rungs[rung]
        _wait_for_end(candidate.directory)
        failure = None
        if not _is_done(candidate.directory, epochs) and not processes.interrupted:
            slot = self._free.get()  # there is one for each thread
            try:
                failure = processes.train(self._arguments(candidate, epochs, group), slot)
            finally:
                self._free.put(slot)
        outcome = _outcome(at, candidate.directory, self._metric.name, epochs, failure)
        if not processes.interrupted:
            said = outcome.cause if outcome.value is None else self._metric.in_log(outcome.value)
            processes.say(f"{candidate.name}: {said}")
        return outcome

    def _arguments(self, candidate: _Candidate, epochs: int, group: int) -> list[str]:
        changes = {**candidate.overrides, "name": candidate.directory.root.name}
        if epochs < candidate.config.train.epochs:
            changes["stop.after_epochs"] = epochs
        if candidate.may_share and group > 1 and self._jobs > 1:
            changes["data.shared"] = "auto"
        threads = threads_of_job_among_others(candidate.config)
        if threads is not None:
            changes["threads"] = threads  # in all rungs, also where one job is left: another number changes the bits
        settings = [f"--set={key}={json.dumps(value)}" for key, value in changes.items()]
        return [str(self._sweep.recipe), *settings, f"--run={candidate.directory.root}"]

    def _decide(self, outcomes: list[JobOutcome]) -> None:
        epochs = self._rungs[len(self._state.rungs)]
        best = ranked(outcomes, self._metric.higher_is_better)
        kept = survivors(outcomes, self._sweep.eta, self._metric.higher_is_better)
        seconds = self._state.spent_seconds - self._state.rung_began_at
        self._state.rungs.append(FinishedRung(epochs, tuple(best), tuple(kept), seconds))
        self._state.rung_began_at = self._state.spent_seconds
        self._state.write(self._folder)

    def _summary(self, interrupted: bool) -> SweepSummary:
        done, whole = self._state.rungs, self._candidates[0].config.train.epochs
        winner = done[-1].kept[0] if done and done[-1].kept else None
        recipe = None
        if winner is not None:
            recipe = self._folder / "winner.yaml"
            named = self._candidates[winner].config.model_copy(update={"name": f"{self._name}-winner"})
            write_text(recipe, dump_config(named))
        hours = self._state.spent_seconds / 3600
        price = self._usd_per_hour
        return SweepSummary(
            self._name,
            self._folder,
            self._metric,
            [each.epochs for each in done],
            self._rows(),
            None if winner is None else self._candidates[winner].name,
            recipe,
            None if winner is None else self._candidates[winner].directory.root,
            complete=len(done) == len(self._rungs),
            interrupted=interrupted,
            budget=str(self._budget) if self._over_budget else None,
            spent_seconds=self._state.spent_seconds,
            spent_usd=None if price is None else price * hours,
            epochs_trained=sum(len(run.epochs) for each in self._candidates if (run := _read(each.directory))),
            epochs_whole=whole * len(self._candidates),
        )

    def _rows(self) -> list[SweepRow]:
        """Those that came furthest first, best first."""
        placed: dict[int, None] = {}
        for rung in reversed(self._state.rungs):
            placed.update(dict.fromkeys(each.configuration for each in rung.outcomes))
        placed.update(dict.fromkeys(range(len(self._candidates))))
        found = [{each.configuration: each for each in rung.outcomes} for rung in self._state.rungs]
        return [
            SweepRow(
                self._candidates[at].name,
                [rung[at].value if at in rung else None for rung in found],
                next((rung[at].cause for rung in found if at in rung and rung[at].cause), None),
                at in (self._state.rungs[-1].kept if self._state.rungs else ()),
            )
            for at in placed
        ]

    def _curves(self) -> dict[str, list[tuple[float, float]]]:
        """Metric over epochs of every configuration that has any."""
        curves = {}
        for each in self._candidates:
            run = _read(each.directory)
            rows = run.epochs if run is not None else []
            points = [(int(r["epoch"]) + 1.0, float(r[self._metric.name])) for r in rows if r.get(self._metric.name)]
            curves[each.name] = points
        return {name: points for name, points in curves.items() if points}


def _wait_for_end(directory: RunDirectory) -> None:
    """A job whose sweep was killed saves a checkpoint and ends, a moment later."""
    deadline = time.monotonic() + _LEFT_SECONDS
    while directory.in_use():
        if time.monotonic() > deadline:
            raise RunDirectoryError(f"{directory.root} is being trained by another process; wait for it, or stop it")
        time.sleep(0.1)


def _read(directory: RunDirectory) -> Run | None:
    try:
        return read_run(directory.root) if directory.exists else None
    except FlatoutError:
        return None


def _is_done(directory: RunDirectory, epochs: int) -> bool:
    """At the end of this rung, or ended before it by a rule of the recipe's own (stop.patience_epochs and the like)."""
    run = _read(directory)
    if run is None:
        return False
    cause = str(run.summary.get("cause") or "")
    own_rule = run.status == "stopped" and "stop." in cause and "stop.after_epochs" not in cause
    ended = run.status in ("stopped", "completed") and len(run.epochs) >= epochs
    return run.status == "completed" or own_rule or ended


def _outcome(at: int, directory: RunDirectory, metric: str, epochs: int, failure: str | None) -> JobOutcome:
    """By the last validation up to the end of the rung."""
    run = _read(directory)
    rows = [row for row in run.epochs if int(row["epoch"]) < epochs and row.get(metric)] if run is not None else []
    if failure is None and rows:
        return JobOutcome(at, float(rows[-1][metric]))
    why = failure or f"it has no {metric}; without a validation split use --metric train_loss"
    return JobOutcome(at, None, why)


def print_sweep(result: SweepSummary) -> None:
    console = Console(highlight=False)
    for line in sweep_lines(result):
        console.print(line, markup=False, soft_wrap=True)


def raise_if_unfinished(result: SweepSummary) -> None:
    if result.interrupted:
        raise Interrupted(f"stopped with checkpoints in {result.folder}; the same command goes on")
    if result.winner is None and result.budget is None:
        why = next((row.cause for row in result.rows if row.cause), "no cause was recorded")
        raise RunFailed(f"all {len(result.rows)} configurations failed, the first: {why}")
