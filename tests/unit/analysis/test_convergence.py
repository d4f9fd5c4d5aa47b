"""Fully trained? Overfitting? Wrong labels? Verdicts from curves, stable where there is little to go by."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.analysis.convergence import Convergence, judge
from flatout.config.tasks import metric_named

TOP1 = metric_named("top1")


def epochs(
    top1: list[float | None], val: list[float | None] | None = None, train: list[float] | None = None, rate: float = 0.1,
    metric: str = "top1",
) -> list[dict[str, str]]:  # fmt: skip
    def cell(values: list[float | None] | list[float] | None, i: int) -> str:
        return "" if values is None or values[i] is None else repr(values[i])

    train = train or [3.0 / (i + 1) for i in range(len(top1))]
    return [
        {"epoch": str(i), metric: cell(top1, i), "val_loss": cell(val, i), "train_loss": cell(train, i), "learning_rate": repr(rate)}
        for i in range(len(top1))
    ]  # fmt: skip


def verdict(found: Convergence) -> tuple[str, bool | None]:
    return found.verdict, found.overfitting


RISING = [0.1, 0.3, 0.45, 0.55, 0.62, 0.67, 0.71, 0.74, 0.77, 0.8]
LEVEL = [0.1, 0.5, 0.8, 0.9, 0.95, 0.968, 0.972, 0.974, 0.974, 0.975]
FALLING_LOSS = [3.0, 2.5, 2.0, 1.7, 1.5, 1.3, 1.2, 1.1, 1.05, 1.0]


def test_a_schedule_that_has_ended_is_as_far_as_it_goes() -> None:
    found = judge(epochs(LEVEL, FALLING_LOSS, rate=1e-7), TOP1, 40, 10, 0.4)
    assert verdict(found) == ("trained", False)
    assert found.why == (
        "top-1 rose by 0.3 points (to 97.5 %) in the last 3 of 10 validations and the learning rate has ended at 0: "
        "trained as far as this schedule goes"
    )
    assert "a longer one may gain more" in judge(epochs(RISING, FALLING_LOSS, rate=1e-7), TOP1, 40, 10, 0.4).why


def test_still_rising_with_epochs_left_is_not_done() -> None:
    found = judge(epochs(RISING[:6], FALLING_LOSS[:6]), TOP1, 40, 10, 0.1)
    assert found.verdict == "still improving"
    assert "4 planned epochs are left" in found.why
    assert "more epochs would help" in judge(epochs(RISING, FALLING_LOSS), TOP1, 40, 10, 0.1).why


def test_a_plateau_at_a_constant_rate() -> None:
    found = judge(epochs(LEVEL, FALLING_LOSS), TOP1, 40, 10, 0.1)
    assert found.verdict == "trained"
    assert "no progress at this learning rate (0.1)" in found.why


def test_validation_loss_rising_while_training_loss_falls() -> None:
    val = [2.0, 1.5, 1.2, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    found = judge(epochs([0.1, 0.3, 0.5, 0.6, 0.6, 0.59, 0.59, 0.58, 0.58, 0.57], val), TOP1, 40)
    assert verdict(found) == ("overfitting", True)
    assert "rose by 60 % since epoch 4 (1.000 to 1.600)" in found.why
    assert "fell (0.750 to 0.300)" in found.why


def test_a_rising_loss_with_rising_accuracy_is_an_alarm_and_not_overfitting() -> None:
    found = judge(epochs(RISING, [2.0, 1.5, 1.2, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]), TOP1, 40)
    assert verdict(found) == ("still improving", False)
    assert found.alarms
    assert "too sure of its mistakes" in found.alarms[0]


def test_both_losses_rising_is_not_overfitting() -> None:
    rows = epochs([0.5, 0.5, 0.4, 0.3, 0.2], [1.0, 1.1, 1.3, 1.5, 1.8], [1.0, 1.2, 1.4, 1.6, 1.9])
    assert judge(rows, TOP1, 10).overfitting is False


def test_the_label_mismatch_of_story_d() -> None:
    """1.2 % and 4.945 > ln(100) while training reached 4.24: called "expected" there, an alarm here."""
    rows = epochs([0.010, 0.011, 0.012], [4.80, 4.90, 4.945], [4.58, 4.40, 4.24])
    found = judge(rows, TOP1, 100)
    assert found.verdict == "wrong labels"
    assert found.alarms == (found.why,)
    for fact in ("4.945", "ln(100) = 4.605", "1.2 %", "chance is 1.0 %", "4.240", "class folders"):
        assert fact in found.why


@pytest.mark.parametrize(
    ("top1", "val", "train"),
    [
        ([0.010, 0.20, 0.30], [4.8, 3.9, 3.3], [4.5, 4.0, 3.5]),  # learns
        ([0.010, 0.010, 0.010], [4.61, 4.61, 4.61], [4.60, 4.60, 4.60]),  # training does not learn either
        ([0.01], [4.9], [4.3]),  # one validation, and training has hardly begun
        ([0.10, 0.15, 0.20], [4.9, 5.0, 5.1], [4.0, 3.0, 2.0]),  # overfits, but far from chance
    ],
)
def test_no_label_alarm_without_cause(top1: list[float | None], val: list[float | None], train: list[float]) -> None:
    assert judge(epochs(top1, val, train), TOP1, 100).verdict != "wrong labels"


def test_guessing_is_not_learning() -> None:
    found = judge(epochs([0.01, 0.01, 0.012], [4.61, 4.61, 4.60], [4.61, 4.60, 4.60]), TOP1, 100)
    assert found.verdict == "not learning"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(bad: float) -> None:
    found = judge(epochs([0.1, 0.2, 0.2], [2.0, bad, 2.0]), TOP1, 10)
    assert found.verdict == "diverged"
    assert "validation loss" in found.why
    assert "epoch 2" in found.why
    assert judge(epochs([0.1, 0.2], [2.0, 1.9], [1.0, bad]), TOP1, 10).verdict == "diverged"


def test_too_little_to_go_by() -> None:
    assert verdict(judge([], TOP1, 10)) == ("unknown", None)
    found = judge(epochs([0.1, 0.2], [2.0, 1.9]), TOP1, 10)
    assert verdict(found) == ("too early", None)
    assert "2 validations so far" in found.why
    never = judge(epochs([None, None], None), TOP1, 10)
    assert verdict(never) == ("unknown", None)
    assert "the training loss went from 3.000 to 1.500 in 2 epochs" in never.why
    assert judge(epochs(RISING, FALLING_LOSS), TOP1, 10, emulated=True).verdict == "unknown"


def test_epochs_without_validation_between_others() -> None:
    rows = epochs([0.1, None, 0.5, None, 0.7, None, 0.9], [2.0, None, 1.5, None, 1.2, None, 1.0])
    assert verdict(judge(rows, TOP1, 10)) == ("still improving", False)


def test_other_metrics_and_directions() -> None:
    bleu: list[float | None] = [5.0, 15.0, 22.0, 25.0, 26.0, 26.1]
    found = judge(
        epochs(bleu, FALLING_LOSS[:6], rate=1e-6, metric="bleu"), metric_named("bleu"), peak_learning_rate=1e-3
    )
    assert found.verdict == "trained"
    assert "BLEU rose by" in found.why
    assert "to 26.1 points" in found.why
    lower = judge(epochs(list(FALLING_LOSS), None, metric="perplexity"), metric_named("perplexity"))
    assert lower.verdict == "still improving"
    assert "perplexity fell by 0.2 (to 1.000)" in lower.why


numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=12), st.sampled_from([None, 0, 1, 2, 1000]))
def test_every_curve_has_a_verdict(rows: list[tuple[float | None, ...]], classes: int | None) -> None:
    names = ("top1", "val_loss", "train_loss", "learning_rate")
    table = [{n: "" if v is None else repr(v) for n, v in zip(names, row, strict=True)} for row in rows]
    found = judge(table, TOP1, classes)
    assert found.verdict
    assert found.why
    json.dumps(found.to_dict())
