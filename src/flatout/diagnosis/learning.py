"""What the curves of a run say of its learning: hypotheses, what tells one from the other, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flatout.diagnosis.signal_groups import Epoch, LearningSignals, mean
from flatout.runs.steps import StepRow

_LEARNS = 0.8  # of the loss of guessing: a training loss below is learnt
_GUESSES = 0.95  # of the loss of guessing: above, nothing is learnt
_EXPLODES = 3.0  # times the first loss, or that of guessing
_LEAST_EPOCHS = 3  # with a validation, before "not learning" can be said
_LEAST_FIRST_STEPS = 8  # of a first epoch whose course means something
_SMALL_SET = 100  # samples of a class: fewer are learnt by heart in a few epochs
_CERTAIN_Z, _SUSPECT_Z = 3.0, 1.5  # standard deviations of guessing

MISMATCH, RANDOM, BY_HEART = "mismatch", "random labels", "by heart"
# How often each would show what is seen, were it so. Rounded judgements, not measurements: they say in one place what
# the evidence is worth.
_LIKELIHOODS: Mapping[str, Mapping[str, float]] = {
    "val below chance": {MISMATCH: 0.70, RANDOM: 0.02, BY_HEART: 0.03},
    "val at chance": {MISMATCH: 0.25, RANDOM: 0.90, BY_HEART: 0.45},
    "val a little above chance": {MISMATCH: 0.05, RANDOM: 0.08, BY_HEART: 0.52},
    "new samples are known": {MISMATCH: 0.80, RANDOM: 0.02, BY_HEART: 0.15},
    "new samples are guessed": {MISMATCH: 0.20, RANDOM: 0.98, BY_HEART: 0.85},
    "few samples": {MISMATCH: 0.4, RANDOM: 0.4, BY_HEART: 0.9},
    "many samples": {MISMATCH: 0.6, RANDOM: 0.6, BY_HEART: 0.1},
}


@dataclass(frozen=True)
class LossCurves:
    """Losses of steps and epochs of a task with classes; only finite ones."""

    steps: Sequence[StepRow]
    epochs: Sequence[Epoch]
    classes: int
    train_samples: int | None = None
    val_samples: int | None = None

    @property
    def guess_loss(self) -> float:
        """Cross entropy of guessing."""
        return math.log(self.classes)

    @cached_property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps if step.loss is not None and math.isfinite(step.loss)]

    @cached_property
    def rated(self) -> list[Epoch]:
        """Epochs with both losses."""
        return [epoch for epoch in self.epochs if epoch.val_loss is not None and epoch.train_loss is not None]

    @property
    def first_loss(self) -> float:
        return mean(self.losses[: max(1, min(5, len(self.losses) // 10))])

    @property
    def last_loss(self) -> float:
        """Of the last tenth of the steps."""
        return mean(self.losses[-max(1, len(self.losses) // 10) :])

    @property
    def luck(self) -> float | None:
        """How many standard deviations the last top-1 is above guessing; None where it is not known."""
        top1 = self.rated[-1].top1 if self.rated else None
        if top1 is None or not self.val_samples:
            return None
        chance = 1 / self.classes
        return (top1 - chance) / math.sqrt(chance * (1 - chance) / self.val_samples)


@dataclass(frozen=True)
class Hypothesis:
    """What may be wrong with the learning. `probability` is 1 where the curves leave no other reading."""

    name: str
    probability: float
    evidence: tuple[str, ...]


def curves_of(learning: LearningSignals, steps: Sequence[StepRow]) -> LossCurves | None:
    """None where there are no classes to guess."""
    if not learning.classes or learning.classes < 2:
        return None
    return LossCurves(steps, learning.epochs, learning.classes, learning.train_samples, learning.val_samples)


def exploded(curves: LossCurves) -> Hypothesis | None:
    """The loss rose far above that of guessing, and ended no better than guessing."""
    if len(curves.losses) < 10:
        return None
    peak, usual = max(curves.losses), max(curves.first_loss, curves.guess_loss)
    if peak <= _EXPLODES * usual or curves.last_loss <= _GUESSES * curves.guess_loss:
        return None
    at = curves.losses.index(peak) + 1
    return Hypothesis(
        "exploded",
        1.0,
        (
            f"the loss was {curves.first_loss:.3g} at first, {peak:.3g} at step {at}, {curves.last_loss:.3g} at "
            f"the end; guessing one of {curves.classes} classes gives {curves.guess_loss:.3g}",
        ),
    )


def not_learning(curves: LossCurves) -> Hypothesis | None:
    """Training is no better than guessing after several epochs, and so is validation."""
    luck = curves.luck
    if len(curves.rated) < _LEAST_EPOCHS or (luck is not None and luck > _CERTAIN_Z):
        return None
    if curves.last_loss <= _GUESSES * curves.guess_loss:
        return None
    return Hypothesis(
        "not learning",
        1.0,
        (
            f"after {len(curves.rated)} epochs the training loss is {curves.last_loss:.3f}; guessing one of "
            f"{curves.classes} classes gives {curves.guess_loss:.3f}",
            _top1_words(curves),
        ),
    )


def val_at_chance(curves: LossCurves) -> list[Hypothesis]:
    """Training learns and validation does not: readings of it, the most probable first; empty where it is not so."""
    rated, luck = curves.rated, curves.luck
    if not rated or luck is None or luck > _CERTAIN_Z:
        return []
    last = rated[-1]
    if (last.train_loss or 0.0) > _LEARNS * curves.guess_loss or (last.val_loss or 0.0) < curves.guess_loss:
        return []
    seen = {
        "val below chance": luck < -_CERTAIN_Z,
        "val at chance": -_CERTAIN_Z <= luck <= _SUSPECT_Z,
        "val a little above chance": luck > _SUSPECT_Z,
        **_of_first_epoch(curves),
        **_of_size(curves),
    }
    weights = dict.fromkeys((MISMATCH, RANDOM, BY_HEART), 1.0)
    for sight, is_so in seen.items():
        for name in weights:
            weights[name] *= _LIKELIHOODS[sight][name] if is_so else 1.0
    total = sum(weights.values())
    evidence = (
        f"training loss {last.train_loss:.2f}, validation {last.val_loss:.2f}, guessing {curves.guess_loss:.2f}",
        _top1_words(curves),
        "; ".join(sight for sight, is_so in seen.items() if is_so),
    )
    found = [Hypothesis(name, weight / total, evidence) for name, weight in weights.items()]
    return sorted(found, key=lambda each: -each.probability)


def _of_first_epoch(curves: LossCurves) -> dict[str, bool]:
    """In the first epoch every sample is new: a loss that falls there is knowledge, not memory."""
    begun = curves.steps[0].epoch if curves.steps else 0
    first = [step.loss for step in curves.steps if step.epoch == begun and step.loss is not None]
    if len(first) < _LEAST_FIRST_STEPS:
        return {}
    known = mean(first[-max(2, len(first) // 4) :]) < 0.9 * curves.guess_loss
    return {"new samples are known": known, "new samples are guessed": not known}


def _of_size(curves: LossCurves) -> dict[str, bool]:
    if not curves.train_samples:
        return {}
    few = curves.train_samples / curves.classes < _SMALL_SET
    return {"few samples": few, "many samples": not few}


def overfits(curves: LossCurves) -> Hypothesis | None:
    """Validation gets worse while training goes on improving; validation is better than guessing."""
    rated = curves.rated
    if len(rated) < 4:
        return None
    best, last = min(rated, key=lambda epoch: epoch.val_loss or 0.0), rated[-1]
    falls = (last.train_loss or 0.0) < 0.9 * (best.train_loss or 0.0)
    if last.number - best.number < 2 or (last.val_loss or 0.0) <= 1.1 * (best.val_loss or 0.0) or not falls:
        return None
    rose = f"validation loss rose from {best.val_loss:.3f} in epoch {best.number + 1} to {last.val_loss:.3f}"
    told = f"{rose} while training loss fell"
    return Hypothesis("overfitting", 1.0, (told, f"the best epoch was {best.number + 1} of {last.number + 1}"))


def smoothing_floor(smoothing: float, classes: int) -> float:
    """The least loss that smoothed labels allow."""
    if smoothing <= 0:
        return 0.0
    right, wrong = 1 - smoothing + smoothing / classes, smoothing / classes
    return -(right * math.log(right) + (classes - 1) * wrong * math.log(wrong))


def noisy_labels(curves: LossCurves, smoothing: float) -> Hypothesis | None:
    """Validation does well and training cannot be learnt: some of its labels are wrong."""
    rated = curves.rated
    if len(rated) < 4:
        return None
    last, before = rated[-1], rated[-3]
    assert last.train_loss is not None
    assert last.val_loss is not None
    excess = last.train_loss - smoothing_floor(smoothing, curves.classes)
    flat = (before.train_loss or 0.0) - last.train_loss < 0.05 * curves.guess_loss
    good = (last.top1 or 0.0) > 0.5 * (1 + 1 / curves.classes)
    if not flat or not good or excess < last.val_loss or excess < 0.25 * curves.guess_loss:
        return None
    return Hypothesis(
        "label noise",
        0.7,
        (f"training loss stays at {last.train_loss:.3f}, validation is at {last.val_loss:.3f}", _top1_words(curves)),
    )


def _top1_words(curves: LossCurves) -> str:
    top1 = curves.rated[-1].top1 if curves.rated else None
    if top1 is None:
        return "no validation"
    of = f" on {curves.val_samples} samples" if curves.val_samples else ""
    return f"top-1 is {100 * top1:.0f} %{of}; guessing gives {100 / curves.classes:.0f} %"
