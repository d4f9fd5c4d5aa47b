"""Explain a run: read its files, apply the rules, write findings.json; write a recipe with the fixes if asked."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from flatout.commands.predict import prediction_errors
from flatout.config.loading import dump_config, load_config
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.verdict import Explanation, explain_signals
from flatout.errors import ConfigError
from flatout.reports.explanation import render_explanation
from flatout.runs import Run
from flatout.runs import read_run as read_run
from flatout.runs.directory import write_json


def explain(run: Run | str | Path) -> Explanation:
    """The verdict on a run and its findings, best first; also written to the run's findings.json."""
    run = run if isinstance(run, Run) else read_run(run)
    signals = replace(read_signals(run), prediction_errors=prediction_errors(run))
    explanation = explain_signals(signals)
    with suppress(OSError):  # a read-only copy of a run can be explained as well
        write_json(run.directory / "findings.json", explanation.to_dict())
    return explanation


def print_explanation(run: Run, explanation: Explanation) -> None:
    from rich.console import Console

    Console(highlight=False).print(render_explanation(run.name, explanation))


def write_fixed_recipe(run: Run, explanation: Explanation, path: Path) -> dict[str, Any]:
    """A recipe like the run's with every fix that is a change of its keys; returns the changes. Runs nothing."""
    changes: dict[str, Any] = {}
    for finding in reversed(explanation.findings):  # where two fixes change one key, the one that buys more wins
        changes.update(finding.fix.changes)
    changes = {key: value for key, value in changes.items() if _known(run.config, key, value)}
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
