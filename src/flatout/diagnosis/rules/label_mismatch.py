"""Training learns and validation stays at chance: the labels of the two do not mean the same."""

import math

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    rated = [epoch for epoch in signals.learning.epochs if epoch.val_loss is not None and epoch.train_loss is not None]
    if not rated or not signals.learning.classes or signals.learning.classes < 2:
        return None
    last, chance = rated[-1], math.log(signals.learning.classes)
    assert last.val_loss is not None
    assert last.train_loss is not None
    learning = last.train_loss < 0.8 * chance
    at_chance = last.val_loss > chance and (last.top1 is None or last.top1 < _no_better_than(signals.learning.classes))
    if not learning or not at_chance or last.val_loss < 0.95 * max(epoch.val_loss or 0.0 for epoch in rated[-2:]):
        return None
    return Finding(
        "label-mismatch",
        "labels",
        f"Validation is at chance (loss {last.val_loss:.2f} > ln({signals.learning.classes}) = {chance:.2f}"
        + ("" if last.top1 is None else f", top-1 {percent(last.top1)}")
        + f") while training learns (loss {last.train_loss:.2f}): the labels of train and val do not match",
        tuple(
            f"epoch {epoch.number + 1}: train {epoch.train_loss:.3f}, val {epoch.val_loss:.3f}" for epoch in rated[-3:]
        ),
        Fix("compare the class folders of train and val: flatout data audit"),
        urgent=True,
    )


def _no_better_than(classes: int) -> float:
    """A share of correct answers that permuted labels still reach by luck."""
    return min(0.6, 1.6 / classes)
