"""A whole run from its steps, and when copying the data first pays."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from flatout.cost import Ledger, Usage
from flatout.diagnosis.model.interval import ZERO, Interval, propagate


@dataclass(frozen=True)
class RunParts:
    """What a run consists of; seconds of one validation and of one checkpoint."""

    step: Interval
    steps_per_epoch: float
    """Of the mean epoch: the last may be cut short."""
    epochs: int
    startup: Interval = ZERO
    cold_extra: Interval = ZERO
    """What the first epoch takes longer than the others."""
    epoch_gap: Interval = ZERO
    validation: Interval = ZERO
    validations: int = 0
    checkpoint: Interval = ZERO
    checkpoints: int = 0

    def epoch_seconds(self) -> Interval:
        return self.step * self.steps_per_epoch + self.epoch_gap

    def run_seconds(self) -> Interval:
        return self.startup + self._epochs_seconds()

    def whole_epoch_seconds(self) -> Interval:
        """A mean one with its validation, checkpoints and share of what the first takes longer."""
        return self._epochs_seconds() * (1 / self.epochs)

    def _epochs_seconds(self) -> Interval:
        evaluating = self.validation * self.validations + self.checkpoint * self.checkpoints
        return self.cold_extra + self.epoch_seconds() * self.epochs + evaluating


def run_usd(seconds: Interval, usage_after: Callable[[float], Usage], price: Callable[[Usage], Ledger]) -> Interval:
    """What a run of that length costs by the ledger; `usage_after` says what is used in so many seconds."""
    return propagate(lambda after: price(usage_after(after)).lines_usd, seconds)


def break_even_epochs(first: float, warm_remote: float, local: float, copy: float) -> int | None:
    """From how many epochs on copying first costs less; None where it never does. In seconds or in dollars alike.

    `first` is the first epoch read remotely, `warm_remote` each later one.
    """
    per_epoch = warm_remote - local
    if per_epoch <= 0:
        return None
    behind = copy + 2 * local - first - warm_remote
    if behind > 0:
        return max(1, 2 + math.ceil(behind / per_epoch))
    return 1 if copy + local < first else 2
