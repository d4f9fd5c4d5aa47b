"""The run does not learn what it should: diverged, not learning, labels that do not match, learnt by heart."""

import math

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.learning import (
    BY_HEART,
    MISMATCH,
    RANDOM,
    Hypothesis,
    LossCurves,
    curves_of,
    exploded,
    noisy_labels,
    not_learning,
    overfits,
    val_at_chance,
)
from flatout.diagnosis.signals import Signals

_SURE = 0.95  # a reading that is stated as a fact
_READINGS = {
    MISMATCH: "the labels of train and val do not mean the same",
    RANDOM: "the labels of train are random",
    BY_HEART: "the training set is learnt by heart",
}


def find(signals: Signals) -> Finding | None:
    """The first of them that the curves show; an emulated device learns nothing."""
    if signals.status == "failed" or signals.device.kind == "emulated":
        return None
    if (found := _not_finite(signals)) is not None:
        return found
    curves = curves_of(signals.learning, signals.steps)
    if curves is None:
        return _grows(signals)
    return (
        _diverged(curves)
        or _grows(signals)
        or _at_chance(curves)
        or _stuck(signals, curves)
        or _advice(signals, curves)
    )


def _not_finite(signals: Signals) -> Finding | None:
    losses = [step.loss for step in signals.steps if step.loss is not None]
    bad = next((number for number, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is None:
        return None
    said = "losses " + ", ".join(f"{loss:.3g}" for loss in losses[max(0, bad - 3) : bad + 1])
    return _diverging(f"the loss is {losses[bad]} from recorded step {bad + 1} on", (said,))


def _grows(signals: Signals) -> Finding | None:
    losses = [step.loss for step in signals.steps if step.loss is not None]
    if len(losses) < 10:
        return None
    tenth = max(1, len(losses) // 10)
    before, after = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    limit = 2 * max(before, math.log(signals.learning.classes) if signals.learning.classes else 0.0)
    if after <= limit:
        return None
    said = "losses " + ", ".join(f"{loss:.3g}" for loss in losses[-3:])
    return _diverging(f"the loss grew from {before:.2f} to {after:.2f}", (said,))


def _diverged(curves: LossCurves) -> Finding | None:
    found = exploded(curves)
    return (
        None if found is None else _diverging("the loss exploded and is no better than guessing since", found.evidence)
    )


def _diverging(what: str, evidence: tuple[str, ...]) -> Finding:
    fix = Fix("lower train.lr (flatout lr-find suggests one), set train.clip_norm", {"train.clip_norm": 1.0})
    return Finding("diverged", "diverged", f"Training diverged: {what}", evidence, fix, urgent=True)


def _stuck(signals: Signals, curves: LossCurves) -> Finding | None:
    found = not_learning(curves)
    if found is None:
        return None
    rates = [step.learning_rate for step in signals.steps if step.learning_rate is not None]
    rate = f" (at most {max(rates):g})" if rates else ""
    return Finding(
        "not-learning",
        "learning",
        f"Nothing is learnt: after {len(curves.rated)} epochs training is no better than guessing",
        (*found.evidence, "one run cannot tell a learning rate that is wrong from labels that say nothing"),
        Fix(f"look at the learning rate{rate} first: flatout lr-find; then at the labels: flatout data audit"),
        urgent=True,
    )


def _at_chance(curves: LossCurves) -> Finding | None:
    readings = val_at_chance(curves)
    if not readings:
        return None
    first, second = readings[:2]
    sure = first.probability >= _SURE
    said = _READINGS[first.name] if sure else f"probably ({percent(first.probability)}) {_READINGS[first.name]}"
    other = "" if sure else f", or {_READINGS[second.name]} ({percent(second.probability)})"
    return Finding(
        {MISMATCH: "label-mismatch", RANDOM: "random-labels", BY_HEART: "memorising"}[first.name],
        "learning" if first.name == BY_HEART else "labels",
        f"Validation is at chance while training learns: {said}{other}",
        first.evidence,
        Fix(_remedy(first)),
        urgent=True,
    )


def _remedy(reading: Hypothesis) -> str:
    if reading.name == BY_HEART:
        return "more data or more augmentation; look at some labels of train and val as well: flatout data audit"
    return "compare the class folders of train and val, and look at some labels of each: flatout data audit"


def _advice(signals: Signals, curves: LossCurves) -> Finding | None:
    if (found := overfits(curves)) is not None:
        fix = Fix(
            "stop earlier, or regularise (augmentation, weight decay, label smoothing)", {"stop.patience_epochs": 3}
        )
        return Finding("overfitting", None, f"Overfitting: {found.evidence[0]}", found.evidence[1:], fix)
    found = None if signals.learning.mixes_samples else noisy_labels(curves, signals.learning.label_smoothing)
    if found is not None:
        sure = percent(found.probability)
        title = f"Probably ({sure}) some labels of train are wrong: they are not learnt, and validation does well"
        return Finding("label-noise", None, title, found.evidence, Fix("look at the samples with the highest loss"))
    return None
