"""Predict what changes to a run would buy, keep the predictions with the run, and score them when the run follows."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from flatout.config.loading import config_digest, load_config, parse_assignments
from flatout.config.schema import Config
from flatout.cost import Usage, hourly_rate_usd, load_catalogue, usage_cost
from flatout.decisions.choice import unless_open
from flatout.decisions.loading import choose_workers
from flatout.diagnosis.calibration import Calibration, Settings, calibrate
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.run import run_usd
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.what_if import SETTINGS, Prediction, cache_break_even, predict, staging_break_even, with_residual
from flatout.errors import BadFile, ConfigError, RunDirectoryError
from flatout.reports.predictions import predictions_table, scores_table
from flatout.runs import Run, list_runs, read_run
from flatout.runs.directory import read_json
from flatout.runs.schema import PREDICTION
from flatout.untrusted import check_shape, read_json_lines

PREDICTIONS = "predictions.jsonl"


@dataclass(frozen=True)
class Score:
    """A prediction beside the run that followed it."""

    made_in: str
    changes: Mapping[str, Any]
    run: str
    step_predicted: float
    step_measured: float
    error: float
    """Relative, of the step: predicted over measured, less one."""
    inside: bool


def predict_changes(run: Run | str | Path, alternatives: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """The run as it is, then each alternative. Kept in the run's predictions.jsonl."""
    run = run if isinstance(run, Run) else read_run(run)
    config = load_config(run.config).config
    calibration = calibration_of(run, config)
    predictions = [_predicted(calibration, config, changes) for changes in ({}, *alternatives)]
    _keep(run, config, predictions[1:], alternatives)
    return predictions


def parse_alternatives(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Each text is one alternative: changes with a comma between them."""
    alternatives = [parse_assignments([part for part in text.split(",") if part.strip()]) for text in texts]
    if not alternatives or not all(alternatives):
        raise ConfigError(
            "nothing to predict; say for example --if data.workers=4 --if data.workers=4,data.batch_size=128"
        )
    return alternatives


def calibration_of(run: Run, config: Config) -> Calibration:
    """From probe.json in the run's directory where there is one, else from the run's own records."""
    probed = read_json(run.directory / "probe.json")
    if probed.get("calibration"):
        return Calibration.from_dict(probed["calibration"])
    signals = read_signals(run)
    if signals.step.done < 3:
        raise RunDirectoryError(
            f"{run.directory} has {signals.step.done} steps; a prediction needs at least 3: train it a little longer"
        )
    settings = settings_of(config, signals.input.workers, signals.recipe.batch_size, signals.input.staged)
    if signals.input.cache_choice is not None:
        settings = replace(settings, cache=signals.input.cache_choice.value)
    return with_residual(calibrate(signals, settings), signals.step.seconds)


def settings_of(config: Config, workers: int, batch_size: int, staged: bool) -> Settings:
    """`workers` and `staged` are as decided: what the recipe says is not what a run had."""
    data, train = config.data, config.train
    return Settings(
        batch_size,
        workers,
        train.epochs,
        train.max_steps,
        data.cache,
        data.stage if staged else "off",
        train.checkpointing,
        train.accumulate,
        config.validate_.every_epochs,
        config.checkpoint.every_epochs,
        config.checkpoint.every_steps,
        train.precision,
        unless_open(data.prefetch),
    )


def _predicted(calibration: Calibration, config: Config, changes: Mapping[str, Any]) -> Prediction:
    """Keys of a recipe are checked as a recipe's, and the changed recipe is priced by the ledger."""
    ours = {key: value for key, value in changes.items() if _in_recipe(key)}
    changed = load_config(config.model_dump(mode="json", by_alias=True), ours).config
    resolved = dict(changes)
    if "data.workers" in ours:
        workers = choose_workers(changed.data.workers, round(calibration.cores), calibration.device_kind)
        resolved["data.workers"] = workers.value
    if "train.precision" in resolved:  # left open, it is the machine's choice, and the run's own
        resolved["train.precision"] = unless_open(resolved["train.precision"]) or calibration.settings.precision
    break_even = staging_break_even(calibration, resolved) or cache_break_even(calibration, resolved)
    prediction = replace(predict(calibration, resolved), changes=changes, break_even_epochs=break_even)
    if hourly_rate_usd(changed.cost, load_catalogue(changed.cost.prices)) is None:
        return replace(prediction, usd=None)
    return replace(prediction, usd=_usd(prediction, calibration, changed))


def _usd(prediction: Prediction, calibration: Calibration, config: Config) -> Interval:
    """Machines by the second, and every sample once per epoch from a store that is not copied."""
    choice, wanted = calibration.cache_choice, config.data.cache
    cache = wanted if choice is None else choice.tier_for(wanted, config.train.epochs)
    # as it was decided for the run, where that stays as it is
    stage = config.data.stage if "data.stage" in prediction.changes else calibration.settings.stage
    copied = stage != "off" or cache != "off"
    epochs = (1 if copied else config.train.epochs) if calibration.remote else 0
    gets = epochs * calibration.samples_per_epoch
    return run_usd(
        prediction.run,
        lambda seconds: Usage(training_seconds=seconds, gets=gets),
        lambda usage: usage_cost(usage, config.cost, load_catalogue(config.cost.prices)),
    )


def _in_recipe(key: str) -> bool:
    return key in SETTINGS or key.startswith(("cost.", "emulated.", "data.", "train.", "model.", "parallel."))


def _keep(
    run: Run, config: Config, predictions: Sequence[Prediction], alternatives: Sequence[Mapping[str, Any]]
) -> None:
    lines = []
    for prediction, changes in zip(predictions, alternatives, strict=True):
        ours = {key: value for key, value in changes.items() if _in_recipe(key)}
        expected = load_config(config.model_dump(mode="json", by_alias=True), ours).config
        elsewhere = sorted(set(changes) - set(ours))
        told = {"made_unix": time.time(), "config_digest": config_digest(expected), "outside_recipe": elsewhere}
        lines.append(json.dumps({**told, **prediction.to_dict()}))
    try:
        with (run.directory / PREDICTIONS).open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    except OSError as error:
        raise RunDirectoryError(f"cannot keep the prediction in {run.directory}: {error.strerror}") from None


def score_predictions(folder: Path) -> list[Score]:
    """Every prediction under a folder of runs for which a run with just that configuration followed."""
    runs = list_runs(folder)
    return [
        _score(origin, kept, run)
        for origin in runs
        for kept in read_predictions(origin.directory)
        for run in runs
        if run.directory != origin.directory and _follows(run, kept)
    ]


def prediction_errors(run: Run) -> tuple[float, ...]:
    """How far off the predictions for just this run were, made in runs beside it."""
    beside = sorted(run.directory.resolve().parent.glob(f"*/{PREDICTIONS}"))
    kept = [each for path in beside if path.parent.name != run.directory.name for each in read_predictions(path.parent)]
    return tuple(_score(run, each, run).error for each in kept if _follows(run, each))


def read_predictions(directory: Path) -> Iterator[dict[str, Any]]:
    path = directory / PREDICTIONS
    for row in read_json_lines(path):
        with suppress(BadFile):  # another program's line
            check_shape(row, PREDICTION, path)
            yield row


def _follows(run: Run, kept: Mapping[str, Any]) -> bool:
    same = run.summary.get("config_digest") == kept.get("config_digest") and not kept.get("outside_recipe")
    started = _started_unix(run)
    return same and len(run.steps) >= 3 and (started is None or started >= kept["made_unix"])


def _started_unix(run: Run) -> float | None:
    return run.steps[0].time_unix if run.steps else None


def _score(origin: Run, kept: Mapping[str, Any], run: Run) -> Score:
    measured = read_signals(run).step.seconds
    step = kept["step"]
    inside = step["low"] <= measured <= step["high"]
    return Score(origin.name, kept["changes"], run.name, step["value"], measured, step["value"] / measured - 1, inside)


def print_predictions(predictions: Sequence[Prediction]) -> None:
    Console(highlight=False).print(predictions_table(predictions))


def print_scores(scores: Sequence[Score]) -> None:
    if not scores:
        Console(highlight=False).print("no prediction has a run that followed it yet", markup=False)
        return
    errors = [abs(each.error) for each in scores]
    inside = sum(each.inside for each in scores)
    Console(highlight=False).print(scores_table(scores))
    Console(highlight=False).print(
        f"mean absolute error {100 * sum(errors) / len(errors):.1f} %, {inside} of {len(scores)} inside their interval",
        markup=False,
    )
