"""Training goes on improving while validation gets worse."""

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    rated = [epoch for epoch in signals.learning.epochs if epoch.val_loss is not None and epoch.train_loss is not None]
    if len(rated) < 4:
        return None
    best = min(rated, key=lambda epoch: epoch.val_loss or 0.0)
    last, at_best = rated[-1], best
    assert last.val_loss is not None
    assert best.val_loss is not None
    falling = (last.train_loss or 0.0) < 0.9 * (at_best.train_loss or 0.0)
    if last.number - best.number < 2 or last.val_loss <= 1.1 * best.val_loss or not falling:
        return None
    return Finding(
        "overfitting",
        None,
        f"Overfitting since epoch {best.number + 1}: validation loss rose from {best.val_loss:.3f} to "
        f"{last.val_loss:.3f} while training loss fell",
        (f"the best epoch was {best.number + 1} of {last.number + 1}",),
        Fix("stop earlier, or regularise (augmentation, weight decay, label smoothing)", {"stop.patience_epochs": 3}),
    )
