"""Predictions that were kept with runs, held against the runs that followed them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.diagnosis.conformal import QUANTITIES, Outcome, Score, bare_errors
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.signals import Signals
from flatout.errors import BadFile, UserError
from flatout.runs import Run, read_run
from flatout.runs.directory import RunDirectory
from flatout.runs.reading import read_summary
from flatout.runs.schema import PREDICTION
from flatout.untrusted import check_shape, read_json_lines

PREDICTIONS = "predictions.jsonl"


def score_predictions(folder: Path) -> list[Score]:
    """Every prediction under a folder of runs for which a run with just that configuration followed. Of predictions of
    the same change, made in the same run, the last before that run began."""
    predictions = list(_stored(folder))
    if not predictions:
        return []
    scores: dict[tuple[str, str, str], Score] = {}
    wanted = {kept["config_digest"] for _, kept in predictions}
    for run in _runs_with(folder, wanted):
        signals: Signals | None = None
        for origin, kept in predictions:
            if run.directory.name != origin.name and follows(run, kept):
                signals = signals or read_signals(run)
                for score in _scored(origin.name, kept, run, signals):
                    scores[origin.name, run.directory.name, score.outcome.quantity] = score
    return list(scores.values())


def _stored(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Oldest first, with the folder of the run they were made in."""
    paths = sorted(folder.glob(f"*/{PREDICTIONS}")) if folder.is_dir() else []
    found = [(path.parent, kept) for path in paths for kept in read_predictions(path.parent)]
    return iter(sorted(found, key=lambda each: float(each[1]["made_unix"])))


def _runs_with(folder: Path, digests: set[str]) -> Iterator[Run]:
    """Only those are read in full."""
    for child in sorted(folder.iterdir()):
        with suppress(UserError, OSError):
            directory = RunDirectory(child)
            if directory.exists and read_summary(directory).get("config_digest") in digests:
                yield read_run(child)


def read_predictions(directory: Path) -> Iterator[dict[str, Any]]:
    path = directory / PREDICTIONS
    for row in read_json_lines(path):
        with suppress(BadFile):  # another program's line
            check_shape(row, PREDICTION, path)
            if row.get("config_digest") and row.get("made_unix") is not None:
                yield row


def follows(run: Run, kept: Mapping[str, Any]) -> bool:
    """Whether a run was begun after a prediction, with the configuration that it was made for."""
    same = run.summary.get("config_digest") == kept.get("config_digest") and not kept.get("outside_recipe")
    started = run.steps[0].time_unix if run.steps else None
    return same and len(run.steps) >= 3 and (started is None or started >= kept["made_unix"])


def _scored(made_in: str, kept: Mapping[str, Any], run: Run, signals: Signals) -> Iterator[Score]:
    """The whole run only where it ended by itself, in one attempt."""
    measured: dict[str, float | None] = {"step": signals.step.seconds, "memory": signals.device.memory_peak_bytes}
    if run.status == "completed" and run.summary.get("attempts", 1) == 1:
        measured["run"] = signals.time.wall_seconds
    bare = bare_errors(kept)
    for name in QUANTITIES:
        value = measured.get(name)
        if name in bare and value:
            given = kept[name]
            outcome = Outcome(name, given["value"], value, bare[name])
            yield Score(made_in, kept["changes"], run.directory.name, outcome, given["low"], given["high"])


def prediction_errors(run: Run) -> tuple[float, ...]:
    """How far off the predictions for just this run's steps were, made in runs beside it."""
    folder = run.directory.resolve().parent
    kept = [each for origin, each in _stored(folder) if origin.name != run.directory.name and follows(run, each)]
    if not kept:
        return ()
    measured = read_signals(run).step.seconds
    return tuple(each["step"]["value"] / measured - 1 for each in kept if each.get("step") and measured > 0)
