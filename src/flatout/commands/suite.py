"""Run the experiments of a suite one after the other, each in a process of its own, and fill its table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from flatout.analysis.mean_epoch import mean_epoch
from flatout.analysis.suite import ExperimentOutcome, SuiteRow, suite_rows
from flatout.commands.suite_predictions import predict_ahead, predicted_epoch
from flatout.commands.training_processes import TrainingProcesses
from flatout.config.loading import differences, load_config, parse_assignments
from flatout.config.schema import Config
from flatout.config.suite import Experiment, Suite, load_suite
from flatout.decisions.compute import with_precision_of
from flatout.errors import ConfigError, DataError, FlatoutError, Interrupted, RunDirectoryError, RunFailed
from flatout.reports.suite_table import as_html, as_json, as_markdown, as_terminal
from flatout.runs import Run, RunDirectory, read_run
from flatout.runs.directory import write_json, write_text
from flatout.storage import open_checked
from flatout.training.stopping import is_interruption


@dataclass(frozen=True)
class SuiteResult:
    """The table, and how the suite ended."""

    folder: Path
    name: str
    rows: list[SuiteRow]
    interrupted: bool

    def to_dict(self) -> dict[str, Any]:
        return {**as_json(self.name, self.rows), "folder": str(self.folder), "interrupted": self.interrupted}

    def raise_if_unfinished(self) -> None:
        if self.interrupted:
            raise Interrupted(f"stopped; the table so far is in {self.folder}, the same command goes on")
        failed = sum(bool(row.causes) for row in self.rows)
        if failed:
            raise RunFailed(
                f"{failed} of {len(self.rows)} experiments failed; their causes are in {self.folder}/table.md"
            )


@dataclass(frozen=True)
class _Plan:
    """An experiment, what it is to be trained with, and where."""

    experiment: Experiment
    config: Config
    directory: RunDirectory


def run_suite(path: Path, assignments: list[str], folder: Path | None, quiet: bool) -> SuiteResult:
    """The same call goes on where it stopped: what is finished with the same configuration is not run again."""
    suite = load_suite(path, parse_assignments(assignments))
    folder = folder or Path("runs") / suite.name
    plans = [  # all are checked before the first runs
        _Plan(each, _config(suite, each), RunDirectory(folder / each.folder)) for each in suite.experiments
    ]
    actions = [_action(plan) for plan in plans]
    _check_data([plan.config.data.path for plan, do in zip(plans, actions, strict=True) if do != "skip"])
    _make(folder)
    console = Console(stderr=True, quiet=quiet, highlight=False)
    outcomes = [_outcome(plan, None) if action == "skip" else None for plan, action in zip(plans, actions, strict=True)]
    with TrainingProcesses(console) as children:
        for _, group in groupby(range(len(plans)), lambda at: plans[at].experiment.group):
            if children.interrupted:
                break
            to_run = []
            for at in group:
                console.print(f"[{at + 1}/{len(plans)}] {plans[at].experiment.name}", markup=False, style="bold")
                if actions[at] == "skip":
                    children.say(f"finished already: {plans[at].directory.root}")
                else:
                    to_run.append(at)
            reference = _reference(outcomes)
            if reference is not None:
                predict_ahead(reference, [plans[at].config for at in to_run])
            ended = children.train_together([_arguments(suite, plans[at], actions[at]) for at in to_run])
            for at, failure in zip(to_run, ended, strict=True):
                outcomes[at] = _outcome(plans[at], failure)
            _write(suite, folder, _rows(suite, plans, outcomes))
    return SuiteResult(folder, suite.name, _rows(suite, plans, outcomes), children.interrupted)


def print_suite(result: SuiteResult) -> None:
    console = Console(highlight=False)
    for each in as_terminal(result.rows, console.width) if result.rows else ():
        console.print(each)
    console.print(f"{result.folder}/table.md, table.html and table.json", markup=False, style="dim")


def _config(suite: Suite, experiment: Experiment) -> Config:
    try:
        return load_config(suite.recipe, experiment.overrides).config
    except ConfigError as error:
        raise ConfigError(f"experiment {experiment.name!r}: {error}") from None


def _check_data(paths: list[str]) -> None:
    """Each place once, before the first experiment: it would be missing for all that follow as well."""
    for path in dict.fromkeys(paths):
        if not path:
            raise DataError("data.path is not set; give a folder, a .tar or a URL: --set data.path=data/shapes")
        open_checked(path).close()


def _action(plan: _Plan) -> str:
    if plan.directory.in_use():
        raise RunDirectoryError(f"{plan.directory.root} is being trained by another process; wait for it, or stop it")
    if not plan.directory.exists:
        return "start"
    try:
        run = read_run(plan.directory.root)
        return next_action(run, load_config(run.config).config, plan.config)
    except FlatoutError:  # damaged, or written by another version
        return "fresh"


def next_action(run: Run, trained: Config, wanted: Config) -> str:
    """skip, resume, or start afresh (the old run is moved aside) where another configuration was trained."""
    wanted = with_precision_of(wanted, trained)  # the run's own config.yaml says what auto became on its device
    if any(key != "name" for key, _, _ in differences(trained, wanted)):
        return "fresh"
    return "skip" if _ended(run) else "resume"


def _ended(run: Run) -> bool:
    """At its last step, or by a rule of its own (stop.max_usd and the like)."""
    by_signal = is_interruption(str(run.summary.get("cause")))
    return run.status == "completed" or (run.status == "stopped" and not by_signal)


def _arguments(suite: Suite, plan: _Plan, action: str) -> list[str]:
    changes = {**plan.experiment.overrides, "name": plan.experiment.folder}
    settings = [f"--set={key}={json.dumps(value)}" for key, value in changes.items()]
    fresh = ["--fresh"] if action == "fresh" else []
    return [str(suite.recipe), *settings, f"--run={plan.directory.root}", *fresh]


def _outcome(plan: _Plan, failure: str | None) -> ExperimentOutcome:
    """What the run's files say; `failure` is the last line of a process that did not end well."""
    experiment, values = plan.experiment, plan.config.model_dump(mode="json", by_alias=True)
    try:
        run = read_run(plan.directory.root) if plan.directory.exists else None
    except FlatoutError as error:
        run, failure = None, str(error)
    if run is None:
        return ExperimentOutcome(experiment.name, experiment.comment, values, cause=failure)
    attempts, why = run.summary.get("attempts") or 1, run.summary.get("cause")
    notes = [f"resumed, {attempts} attempts"] if attempts > 1 else []
    cause = failure  # of a run that is complete and was refused, what refused it
    if _ended(run):
        notes += [f"{run.status}: {why}"] if why else []
    else:
        cause = f"{run.status}: {why or failure}"
    return ExperimentOutcome(experiment.name, experiment.comment, values, run, mean_epoch(run), cause, tuple(notes))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"cannot make {folder}: {error.strerror}; choose another --runs DIR") from None


def _reference(outcomes: Sequence[ExperimentOutcome | None]) -> Run | None:
    """What the others are predicted from: the first experiment, once it has ended well."""
    first = outcomes[0] if outcomes else None
    return first.run if first is not None and first.epoch is not None and first.cause is None else None


def _rows(suite: Suite, plans: Sequence[_Plan], outcomes: Sequence[ExperimentOutcome | None]) -> list[SuiteRow]:
    """Of what has been run so far."""
    reference, found = _reference(outcomes), []
    for plan, each in zip(plans, outcomes, strict=True):
        if each is not None:
            predicted = None if reference is None else predicted_epoch(reference, plan.config)
            found.append(replace(each, predicted_seconds=predicted))
    return suite_rows(found, suite.columns)


def _write(suite: Suite, folder: Path, rows: list[SuiteRow]) -> None:
    write_text(folder / "table.md", as_markdown(suite.name, rows))
    write_text(folder / "table.html", as_html(suite.name, rows))
    write_json(folder / "table.json", as_json(suite.name, rows))
