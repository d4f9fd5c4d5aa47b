"""Predict what changes to a run would buy, keep the predictions with the run, and score them when the run follows."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from flatout.commands.cache_costs import with_cache_costs
from flatout.commands.scoring import PREDICTIONS, score_predictions
from flatout.commands.scoring import prediction_errors as prediction_errors
from flatout.config.loading import config_digest, load_config, parse_assignments
from flatout.config.schema import Config
from flatout.cost import Usage, hourly_rate_usd, load_catalogue, usage_cost
from flatout.decisions.choice import unless_open
from flatout.decisions.loading import choose_workers
from flatout.diagnosis.calibration import Calibration, Settings, calibrate
from flatout.diagnosis.changes import RANK_KEYS, SETTINGS, changed_job
from flatout.diagnosis.conformal import Score, bare_errors, interval_factors
from flatout.diagnosis.machine_share import read_share
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.run import run_usd
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.signals import Signals
from flatout.diagnosis.step_model import ranks_here
from flatout.diagnosis.what_if import Prediction, cache_break_even, staging_break_even, with_residual
from flatout.diagnosis.what_if import predict as predict_job
from flatout.errors import BadFile, ConfigError, RunDirectoryError
from flatout.reports.predictions import coverage_lines, predictions_table, scores_table
from flatout.runs import Run, read_run
from flatout.runs.directory import read_json


def predict(run: Run | str | Path, changes: Mapping[str, Any]) -> Prediction:
    """What these changes to the run would buy, as `{"data.workers": 4}`. Kept beside the run, and compared with the run
    that follows (`flatout predict --score`)."""
    return predict_changes(run, [changes])[1]


def predict_changes(
    run: Run | str | Path, alternatives: Sequence[Mapping[str, Any]], keep: bool = True
) -> list[Prediction]:
    """The run as it is, then each alternative. Kept in the run's predictions.jsonl, unless somebody only looks."""
    run = run if isinstance(run, Run) else read_run(run)
    config = load_config(run.config).config
    calibration = calibration_of(run, config)
    if any("data.cache" in changes for changes in alternatives):
        calibration = with_cache_costs(calibration, run, config)
    predictions = [_predicted(calibration, config, changes) for changes in ({}, *alternatives)]
    if keep:
        _keep(run, config, predictions[1:], _bare(calibration, config, alternatives))
    return predictions


def parse_alternatives(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Each text is one alternative: changes with a comma between them."""
    alternatives = [parse_assignments([part for part in text.split(",") if part.strip()]) for text in texts]
    if not alternatives or not all(alternatives):
        raise ConfigError(
            "nothing to predict; say for example --if data.workers=4 --if data.workers=4,data.batch_size=128"
        )
    return alternatives


def calibration_of(run: Run, config: Config, signals: Signals | None = None) -> Calibration:
    """From probe.json in the run's directory where there is one, else from the run's own records. Its intervals are as
    wide as the outcomes of the predictions stored beside the run ask for. `signals` of the run, if they were read."""
    calibration = _own_calibration(run, config, signals)
    outcomes = [each.outcome for each in score_predictions(run.directory.resolve().parent)]
    return replace(calibration, interval_factors=interval_factors(outcomes))


def _own_calibration(run: Run, config: Config, signals: Signals | None) -> Calibration:
    probed = read_json(run.directory / "probe.json")
    if probed.get("calibration"):
        try:
            return Calibration.from_dict(probed["calibration"])
        except BadFile as error:
            raise RunDirectoryError(f"cannot read {run.directory / 'probe.json'}: {error}") from None
    signals = read_signals(run) if signals is None else signals
    if signals.step.done < 3:
        raise RunDirectoryError(
            f"{run.directory} has {signals.step.done} steps; a prediction needs at least 3: train it a little longer"
        )
    settings = settings_of(config, signals.input.workers, signals.recipe.batch_size, signals.input.staged)
    if signals.input.cache_choice is not None:
        settings = replace(settings, cache=signals.input.cache_choice.value)
    return with_residual(calibrate(signals, settings, read_share(run)), signals.step.seconds)


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
    changed, _ = changed_recipe(config, changes)
    resolved = _resolved(calibration, changed, changes)
    break_even = staging_break_even(calibration, resolved) or cache_break_even(calibration, resolved)
    notes = tuple(_notes(calibration, config, changed, changes))
    prediction = replace(predict_job(calibration, resolved), changes=changes, break_even_epochs=break_even, notes=notes)
    if hourly_rate_usd(changed.cost, load_catalogue(changed.cost.prices)) is None:
        return replace(prediction, usd=None)
    return replace(prediction, usd=_usd(prediction, calibration, changed))


def changed_recipe(config: Config, changes: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """The recipe that would be trained, and the changes that no recipe holds. Ranks on one machine are a recipe's:
    `parallel.mode` follows from their number."""
    ours = {key: value for key, value in changes.items() if _in_recipe(key)}
    outside = sorted(set(changes) - set(ours))
    recipe = config.model_dump(mode="json", by_alias=True)
    ranks = next((changes[key] for key in RANK_KEYS if key in changes), None)
    if ranks is not None and config.parallel.nodes == 1:
        outside = [key for key in outside if key not in RANK_KEYS]
        ours = {key: value for key, value in ours.items() if key not in RANK_KEYS}
        if isinstance(ranks, int) and ranks > 1:
            mode = config.parallel.mode if config.parallel.mode in ("ddp", "fsdp") else "ddp"
            ours |= {"parallel.mode": mode, "parallel.devices": ranks}
        else:
            recipe.pop("parallel")  # one process: nothing of it is used any more
    return load_config(recipe, ours).config, outside


def _resolved(calibration: Calibration, changed: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What `auto` stands for in a changed recipe."""
    resolved = dict(changes)
    if "data.workers" in changes:
        here = ranks_here(
            calibration, changed_job(calibration, {key: changes[key] for key in RANK_KEYS if key in changes})
        )
        cores = max(1, round(calibration.cores) // here)
        resolved["data.workers"] = choose_workers(changed.data.workers, cores, calibration.device_kind).value
    if "train.precision" in resolved:  # left open, it is the machine's choice, and the run's own
        resolved["train.precision"] = unless_open(resolved["train.precision"]) or calibration.settings.precision
    return resolved


def _notes(calibration: Calibration, config: Config, changed: Config, changes: Mapping[str, Any]) -> Iterator[str]:
    if changed.cost.instance != config.cost.instance:
        yield (
            f"how fast {changed.cost.instance} is, is not known from this run: its price, at the speed of the machine "
            f"that was measured; `flatout plan RECIPE --machine {changed.cost.instance}` estimates its speed"
        )
    if changes.get("data.stage", "off") != "off" and not calibration.remote:
        yield "data.stage changes nothing: the data is on a disk of this machine"
    choice = calibration.cache_choice
    if changes.get("data.cache", "off") != "off" and (choice is None or not choice.is_measured):
        yield (
            "what the first epoch takes that fills the cache was not measured, and can be several times as long on "
            "large pictures: `flatout bench loader` measures it"
        )


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


def _bare(
    calibration: Calibration, config: Config, alternatives: Sequence[Mapping[str, Any]]
) -> list[dict[str, float]]:
    """How wide the model alone makes its intervals: what later outcomes are scored by."""
    alone = replace(calibration, interval_factors={})
    return [bare_errors(_predicted(alone, config, changes).to_dict()) for changes in alternatives]


def _keep(run: Run, config: Config, predictions: Sequence[Prediction], bare: Sequence[Mapping[str, float]]) -> None:
    lines = []
    for prediction, errors in zip(predictions, bare, strict=True):
        expected, elsewhere = changed_recipe(config, prediction.changes)
        told = {"made_unix": time.time(), "config_digest": config_digest(expected), "outside_recipe": elsewhere}
        lines.append(json.dumps({**told, **prediction.to_dict(), "bare_errors": dict(errors)}))
    try:
        with (run.directory / PREDICTIONS).open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    except OSError as error:
        raise RunDirectoryError(f"cannot keep the prediction in {run.directory}: {error.strerror}") from None


def predictions_shown(predictions: Sequence[Prediction]) -> RenderableType:
    notes = dict.fromkeys(note for each in predictions for note in each.notes)
    return Group(predictions_table(predictions), *map(Text, notes))


def scores_shown(scores: Sequence[Score]) -> RenderableType:
    if not scores:
        return "no prediction has a run that followed it yet"
    return Group(scores_table(scores), *map(Text, coverage_lines(scores)))
