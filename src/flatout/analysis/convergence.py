"""Is the model fully trained? Does it overfit? Are the labels right? From the curves, with the reason in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flatout.config.tasks import Metric

_FLAT = 0.01  # of the best value: less than this is noise on validation splits of ordinary size
_RISE = 0.05  # of the lowest validation loss
_LAST_SHARE = 0.3  # of the validations: what "lately" means
_FEWEST = 3  # validations without which a trend is a guess
_SCHEDULE_END = 0.02  # of the peak learning rate


@dataclass(frozen=True)
class Convergence:
    """`verdict` is one of: trained, still improving, overfitting, wrong labels, not learning, diverged, too early,
    unknown. What cannot be told is None."""

    verdict: str
    why: str
    alarms: tuple[str, ...] = ()
    overfitting: bool | None = None
    overfitting_why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "alarms": list(self.alarms)}


@dataclass(frozen=True)
class Curves:
    """The columns of epochs.csv as numbers; None where an epoch has no value."""

    metric: list[float | None]
    val_loss: list[float | None]
    train_loss: list[float | None]
    learning_rate: list[float | None]
    top1: list[float | None]

    @property
    def validated(self) -> list[int]:
        """Epochs with a metric."""
        return [i for i, value in enumerate(self.metric) if value is not None]


def judge(
    epochs: Sequence[Mapping[str, str]],
    metric: Metric,
    classes: int | None = None,
    planned_epochs: int | None = None,
    peak_learning_rate: float | None = None,
    emulated: bool = False,
) -> Convergence:
    """From the rows of epochs.csv that count. `classes` only where the loss is a cross entropy over them."""
    curves = Curves(*(_column(epochs, n) for n in (metric.name, "val_loss", "train_loss", "learning_rate", "top1")))
    if emulated:
        return Convergence("unknown", "the device is emulated: nothing was learnt, so the curves mean nothing")
    if not epochs:
        return Convergence("unknown", "no epoch has been finished yet")
    for name, column in (("training loss", curves.train_loss), ("validation loss", curves.val_loss)):
        if (at := next((i for i, v in enumerate(column) if v is not None and not math.isfinite(v)), None)) is not None:
            return Convergence(
                "diverged", f"the {name} is {column[at]} in epoch {at + 1}: lower train.lr or set train.clip_norm"
            )
    alarm = _label_alarm(curves, classes)
    fits, fits_why = _overfitting(curves, metric)
    if alarm:
        return Convergence("wrong labels", alarm, (alarm,), fits, fits_why)
    verdict, why = _trained(curves, metric, classes, planned_epochs, peak_learning_rate)
    if fits:
        return Convergence("overfitting", fits_why, (), True, fits_why)
    return Convergence(verdict, why, _overconfidence(curves, metric), fits, fits_why)


def _column(epochs: Sequence[Mapping[str, str]], name: str) -> list[float | None]:
    return [float(row[name]) if row.get(name) else None for row in epochs]


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _label_alarm(curves: Curves, classes: int | None) -> str | None:
    """Validation at chance while training learns: the two splits do not mean the same by a label."""
    val_loss, train_loss, top1 = _last(curves.val_loss), _last(curves.train_loss), _last(curves.top1)
    if val_loss is None or train_loss is None or top1 is None or not classes or classes < 2:
        return None
    chance_loss, chance = math.log(classes), 1 / classes
    times = sum(value is not None and value > chance_loss for value in curves.val_loss)
    learns = train_loss < (0.95 if times > 1 else 0.8) * chance_loss  # one bad validation may be a large step
    if not (learns and val_loss > chance_loss and top1 < 2 * chance):
        return None
    return (
        f"validation is at chance while training learns: validation loss {val_loss:.3f} is above ln({classes}) = "
        f"{chance_loss:.3f} and top-1 is {100 * top1:.1f} % (chance is {100 * chance:.1f} %), but the training loss "
        f"fell to {train_loss:.3f}; check that the class folders of train and val map to the same labels"
    )


def _overfitting(curves: Curves, metric: Metric) -> tuple[bool | None, str]:
    at = [i for i, value in enumerate(curves.val_loss) if value is not None]
    losses = [value for value in curves.val_loss if value is not None]
    if len(at) < _FEWEST:
        return None, f"cannot be told: {_count(len(at))} with a loss, at least {_FEWEST} are needed"
    best = min(range(len(losses)), key=losses.__getitem__)
    rise = (losses[-1] - losses[best]) / (abs(losses[best]) or 1.0)
    since = f"epoch {at[best] + 1}"
    train_then, train_now = _last(curves.train_loss[: at[best] + 1]), _last(curves.train_loss)
    falls = train_then is not None and train_now is not None and train_now < train_then
    if best >= len(losses) - 2 or rise < _RISE:
        return (
            False,
            f"no: the validation loss was lowest in {since} ({losses[best]:.3f}) and ended at {losses[-1]:.3f}",
        )
    if not falls:
        return False, f"no: the validation loss rose since {since}, but so did the training loss"
    moved = f"the validation loss rose by {100 * rise:.0f} % since {since} ({losses[best]:.3f} to {losses[-1]:.3f}) "
    if _gain(curves.metric, at[best], metric) > _FLAT:
        return False, f"not yet: {moved}while {metric.title} still improved: the model is too sure of its mistakes"
    return True, (
        f"yes: {moved}while the training loss fell ({train_then:.3f} to {train_now:.3f}): the model learns the "
        f"training set by heart; stop earlier, keep the checkpoint of {since}, or regularise more"
    )


def _overconfidence(curves: Curves, metric: Metric) -> tuple[str, ...]:
    _, why = _overfitting(curves, metric)
    return (why.removeprefix("not yet: "),) if why.startswith("not yet") else ()


def _gain(values: Sequence[float | None], since: int, metric: Metric) -> float:
    """How much better the best after `since` is than the best up to it, as a share of the best; 0 if unknown."""
    sign = 1 if metric.higher_is_better else -1
    before = [sign * value for value in values[: since + 1] if value is not None]
    after = [sign * value for value in values[since + 1 :] if value is not None]
    if not before or not after:
        return 0.0
    scale = max(abs(max(before)), abs(max(after))) or 1.0
    return (max(after) - max(before)) / scale


def _trained(
    curves: Curves, metric: Metric, classes: int | None, planned_epochs: int | None, peak: float | None
) -> tuple[str, str]:
    at = curves.validated
    if not at:
        return (
            "unknown",
            f"no validation: {_train_words(curves)}, which cannot show how well the model does on new data",
        )
    if len(at) < _FEWEST:
        return "too early", f"{_count(len(at))} so far ({_train_words(curves)}); a trend needs at least {_FEWEST}"
    if classes and _at_chance(curves, classes):
        return "not learning", f"the training loss is still ln({classes}) = {math.log(classes):.3f}, as by guessing"
    window = max(2, round(_LAST_SHARE * len(at)))
    lately = _lately(curves, metric, at, window)
    ended = _schedule_end(curves, peak)
    left = (planned_epochs or 0) - len(curves.metric)
    if _gain(curves.metric, at[-window - 1], metric) > _FLAT:
        if ended:
            return "trained", f"{lately} and {ended}: trained as far as this schedule goes; a longer one may gain more"
        more = f"{left} planned epochs are left" if left > 0 else "more epochs would help"
        return "still improving", f"{lately}: {more}"
    if ended:
        return "trained", f"{lately} and {ended}: trained as far as this schedule goes"
    rest = "a lower learning rate may still help"
    return "trained", f"{lately}: no progress at this learning rate ({_last(curves.learning_rate) or 0:.3g}); {rest}"


def _at_chance(curves: Curves, classes: int) -> bool:
    loss, top1 = _last(curves.train_loss), _last(curves.top1)
    return loss is not None and top1 is not None and loss > 0.97 * math.log(classes) and top1 < 1.5 / classes


def _lately(curves: Curves, metric: Metric, at: Sequence[int], window: int) -> str:
    """What the best value did over the last validations."""
    pick = max if metric.higher_is_better else min
    before = pick(value for i in at[:-window] if (value := curves.metric[i]) is not None)
    after = pick(value for i in at[-window:] if (value := curves.metric[i]) is not None)
    better = after > before if metric.higher_is_better else after < before
    during = f"in the last {window} of {len(at)} validations"
    if not better:
        return f"{metric.title} has not improved on {metric.write(before)} {during}"
    change = abs(after - before) * metric.factor
    points = f"{change:.1f} points" if metric.unit else f"{change:.3g}"
    verb = "rose" if metric.higher_is_better else "fell"
    return f"{metric.title} {verb} by {points} (to {metric.write(after)}) {during}"


def _schedule_end(curves: Curves, peak: float | None) -> str:
    rate = _last(curves.learning_rate)
    peak = peak or max((value for value in curves.learning_rate if value is not None), default=None)
    if rate is None or not peak or rate > _SCHEDULE_END * peak:
        return ""
    return (
        f"the learning rate has ended at {rate:.2g} of {peak:g}"
        if rate > 1e-4 * peak
        else ("the learning rate has ended at 0")
    )


def _train_words(curves: Curves) -> str:
    losses = [value for value in curves.train_loss if value is not None]
    if not losses:
        return "no training loss was recorded"
    if len(losses) == 1:
        return f"the training loss is {losses[0]:.3f} after one epoch"
    return f"the training loss went from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} epochs"


def _count(validations: int) -> str:
    return "1 validation" if validations == 1 else f"{validations or 'no'} validations"
