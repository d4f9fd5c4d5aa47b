"""The best fix of a finding: of all changes that apply to its cause, the one that the performance model puts first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.finding import Finding, Fix, run_gain
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.diagnosis.what_if import Prediction, predict
from flatout.errors import FlatoutError

LOADING_CAUSES = ("data-workers", "data-decode", "data-fetch")
_MOST_WORKERS = 16
_BETTER = 1.05  # times as fast as the rule's own change: less is not worth another fix
_WORTH_IT = 1.03

Changes = Mapping[str, Any]
Predictor = Callable[[Changes], Prediction]


@dataclass(frozen=True)
class Remedy:
    """A change of the recipe, in words, and what the model expects of it."""

    text: str
    changes: dict[str, Any]
    gain: Interval


def improver(signals: Signals, calibration: Calibration) -> Callable[[Finding], Finding]:
    """For `explain_signals`: each finding with the fix that buys most."""
    guess = _predictor(calibration)
    current = guess({})
    return lambda finding: finding if current is None else _improved(finding, signals, current, guess)


def _predictor(calibration: Calibration) -> Callable[[Changes], Prediction | None]:
    """None for what the model knows nothing of."""

    def guess(changes: Changes) -> Prediction | None:
        try:
            return predict(calibration, changes)
        except (FlatoutError, ArithmeticError, ValueError, TypeError):
            return None

    return guess


def _improved(
    finding: Finding, signals: Signals, current: Prediction, guess: Callable[[Changes], Prediction | None]
) -> Finding:
    if finding.gain is None or finding.cause not in LOADING_CAUSES or finding.id in ("cold-epoch", "epoch-start"):
        return finding
    own = _priced(finding.fix.text, dict(finding.fix.changes), current, guess) if finding.fix.changes else None
    others = [_priced(text, changes, current, guess) for text, changes in candidates(signals)]
    best = max((each for each in others if each is not None), key=lambda each: each.gain.value, default=None)
    if own is not None and (best is None or best.gain.value < _BETTER * own.gain.value):
        best = own
    if best is None:
        return finding
    if best.gain.value < _WORTH_IT:  # what the rule promises of its own change the model does not see
        return replace(finding, fix=Fix(f"{finding.fix.text} (by the model, no setting of the recipe helps)"))
    return _with(finding, best, signals)


def _priced(
    text: str, changes: dict[str, Any], current: Prediction, guess: Callable[[Changes], Prediction | None]
) -> Remedy | None:
    expected = guess(changes)
    if expected is None or expected.run.value <= 0 or current.run.value <= 0:
        return None
    factor = current.run.value / expected.run.value
    error = min(0.5, (expected.run.high - expected.run.low) / 2 / expected.run.value)
    return Remedy(text, changes, Interval(factor, max(1.0, factor / (1 + error)), max(1.0, factor / (1 - error))))


def _with(finding: Finding, remedy: Remedy, signals: Signals) -> Finding:
    """Seconds are those of the run as it was; a gain below 1 is none."""
    wall, gain = signals.time.wall_seconds, remedy.gain
    saved = Interval(*(wall * (1 - 1 / max(1.0, factor)) for factor in (gain.value, gain.low, gain.high)))
    usd = None if signals.cost.usd_per_hour is None else saved.value / 3600 * signals.cost.usd_per_hour
    fix = Fix(remedy.text, remedy.changes)
    return replace(finding, fix=fix, gain=run_gain(signals, saved), saved=saved, saved_seconds=saved.value, usd=usd)


def candidates(signals: Signals) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every change of how batches are loaded that this run does not have yet, one and two at a time."""
    tiers = list(_tiers(signals))
    for words, change in tiers:
        yield words, change
    for workers in _worker_counts(signals):
        change = {"data.workers": workers}
        if signals.input.prefetch < workers:
            change["data.prefetch"] = 2 * workers
        yield f"use {workers} workers", change
        for words, tier in tiers:
            yield f"use {workers} workers and {words}", {**change, **tier}


def _worker_counts(signals: Signals) -> list[int]:
    """More than there are. Beyond the cores only where workers wait for files, and not for the interpreter's lock."""
    cores, now = signals.host.cores, signals.input.workers
    most = _MOST_WORKERS if signals.fetch_bound and not signals.input.fetchers else cores
    return [count for count in sorted({cores, 2, 4, 8, _MOST_WORKERS}) if now < count <= most]


def _tiers(signals: Signals) -> Iterator[tuple[str, dict[str, Any]]]:
    """`auto` measures before it fills a cache: it is never slower by more than that."""
    if signals.input.worker_kind == "process" or signals.recipe.epochs < 2:
        return
    if signals.input.remote and not signals.input.staged:
        yield "copy the data to local disk while the first epoch trains", {"data.stage": "auto"}
    if signals.cache_is_worth_a_try:
        yield "keep decoded samples after the first epoch", {"data.cache": "auto"}
