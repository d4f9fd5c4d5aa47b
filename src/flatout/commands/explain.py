"""Explain a run: read its files and apply the rules, which changes nothing in it.

Commands keep the result: findings.json in the run, and a recipe with the fixes if asked."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from flatout.commands.predict import calibration_of, prediction_errors
from flatout.config.loading import dump_config, load_config
from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.remedies import improver
from flatout.diagnosis.signals import Signals
from flatout.diagnosis.verdict import Explanation, explain_signals
from flatout.errors import ConfigError, UserError
from flatout.reports.explanation import render_explanation as render_explanation
from flatout.runs import Run
from flatout.runs import read_run as read_run
from flatout.runs.directory import write_json


def explain(run: Run | str | Path) -> Explanation:
    """The verdict on a run and its findings, best first. Changes nothing in the run."""
    run = run if isinstance(run, Run) else read_run(run)
    signals = replace(read_signals(run), prediction_errors=prediction_errors(run))
    return explain_signals(signals, _improver(run, signals))


def keep_explanation(run: Run, explanation: Explanation) -> None:
    """Writes the run's findings.json, which reports show; a read-only copy of a run stays without it."""
    with suppress(OSError):
        write_json(run.directory / "findings.json", explanation.to_dict())


def _improver(run: Run, signals: Signals) -> Callable[[Finding], Finding]:
    """Findings as the rules have them where the model cannot be calibrated; without fixes that the run has already."""
    improve: Callable[[Finding], Finding] | None = None
    with suppress(UserError, ArithmeticError, ValueError):
        improve = improver(signals, calibration_of(run, load_config(run.config).config, signals))
    return lambda finding: _unless_there(run, finding if improve is None else improve(finding))


def _unless_there(run: Run, finding: Finding) -> Finding:
    """A fix that the recipe has already helps nobody."""
    left = {key: value for key, value in finding.fix.changes.items() if _known(run.config, key, value)}
    if left or not finding.fix.changes:
        return replace(finding, fix=replace(finding.fix, changes=left))
    told = ", ".join(f"{key}={value}" for key, value in finding.fix.changes.items())
    return replace(finding, fix=Fix(f"the recipe has {told} already; look at the evidence"))


def fixing_changes(run: Run, explanation: Explanation) -> dict[str, Any]:
    """Keys and values of every fix that a recipe can hold, each of which differs from the run's."""
    changes: dict[str, Any] = {}
    for finding in reversed(explanation.findings):  # where two fixes change one key, the one that buys more wins
        changes.update(finding.fix.changes)
    return {key: value for key, value in changes.items() if _known(run.config, key, value)}


def write_fixed_recipe(run: Run, explanation: Explanation, path: Path) -> dict[str, Any]:
    """A recipe like the run's with every fix that is a change of its keys; returns the changes. Runs nothing."""
    changes = fixing_changes(run, explanation)
    if not changes:
        raise ConfigError(f"no finding of {run.directory} has a fix that a recipe can hold; nothing was written")
    config = load_config(run.config, changes).config
    try:
        path.write_text(
            f"# {run.name} with fixes: {yaml.safe_dump(changes, default_flow_style=True, width=10**6)}"
            + dump_config(config),
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError(f"cannot write the recipe {path}: {error.strerror}; choose another file") from None
    return changes


def _known(config: dict[str, Any], key: str, value: Any) -> bool:
    """Whether this change alone gives a valid recipe that differs."""
    try:
        return load_config(config, {key: value}).config != load_config(config).config
    except ConfigError:
        return False
