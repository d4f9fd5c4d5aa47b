"""The best fix of a finding: of all changes that apply to its cause, the one that the performance model puts first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.diagnosis.calibration import Calibration
from flatout.diagnosis.finding import Finding, Fix, run_gain
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.diagnosis.what_if import predict
from flatout.errors import FlatoutError

LOADING_CAUSES = ("data-workers", "data-decode", "data-fetch")
_MOST_WORKERS = 16
_BETTER = 1.05  # times as fast as the rule's own change: less is not worth another fix
_WORTH_IT = 1.03

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Remedy:
    """A change of the recipe, in words, and what the model expects of it."""

    text: str
    changes: dict[str, Any]
    gain: Interval


def improver(signals: Signals, calibration: Calibration) -> Callable[[Finding], Finding]:
    """For `explain_signals`: each finding with the fix that buys most."""
    price = _pricer(calibration)
    return lambda finding: _improved(finding, signals, price)


def _pricer(calibration: Calibration) -> Callable[[Changes], Interval | None]:
    """How many times as fast the run gets by a change; None for what the model knows nothing of."""
    choice = calibration.cache_choice
    cache_is_known = choice is not None and choice.is_measured

    def price(changes: Changes) -> Interval | None:
        try:
            current, expected = predict(calibration, {}).run, predict(calibration, changes).run
        except (FlatoutError, ArithmeticError, ValueError, TypeError):
            return None
        if expected.value <= 0 or current.value <= 0:
            return None
        factor = current.value / expected.value
        error = min(0.5, (expected.high - expected.low) / 2 / expected.value)
        low = factor / (1 + error)
        if "data.cache" in changes and not cache_is_known:  # the loader will measure, and may decline
            rest = price({key: value for key, value in changes.items() if key != "data.cache"})
            low = min(low, rest.low if rest is not None else 1.0)
        return Interval(factor, max(1.0, low), max(1.0, factor / (1 - error)))

    return price


def _improved(finding: Finding, signals: Signals, price: Callable[[Changes], Interval | None]) -> Finding:
    if finding.gain is None or finding.id in ("cold-epoch", "epoch-start"):
        return finding
    if finding.cause not in LOADING_CAUSES:
        return _capped(finding, signals, price)
    own = _priced(finding.fix.text, dict(finding.fix.changes), price) if finding.fix.changes else None
    others = [_priced(text, changes, price) for text, changes in candidates(signals)]
    best = max((each for each in others if each is not None), key=lambda each: each.gain.value, default=None)
    if own is not None and (best is None or best.gain.value < _BETTER * own.gain.value):
        best = own
    if best is None:
        return finding
    if best.gain.value < _WORTH_IT:  # what the rule promises of its own change the model does not see
        return replace(finding, fix=Fix(f"{finding.fix.text} (by the model, no setting of the recipe helps)"))
    return _with(finding, best, signals)


def _capped(finding: Finding, signals: Signals, price: Callable[[Changes], Interval | None]) -> Finding:
    """A rule sees one part of the run. The model knows what comes to the fore where that part gets shorter."""
    gain = price(finding.fix.changes) if finding.fix.changes else None
    if gain is None or finding.gain is None or gain.value >= finding.gain.value:
        return finding
    return _with(finding, Remedy(finding.fix.text, dict(finding.fix.changes), gain), signals)


def _priced(text: str, changes: dict[str, Any], price: Callable[[Changes], Interval | None]) -> Remedy | None:
    gain = price(changes)
    return None if gain is None else Remedy(text, changes, gain)


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
