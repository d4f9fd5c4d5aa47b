"""Alternatives side by side, and how well earlier predictions held."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.table import Table

from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.what_if import Prediction
from flatout.units import format_bytes, format_seconds, format_usd


class Scored(Protocol):
    """A prediction beside the run that followed."""

    @property
    def made_in(self) -> str: ...
    @property
    def changes(self) -> Mapping[str, Any]: ...
    @property
    def run(self) -> str: ...
    @property
    def step_predicted(self) -> float: ...
    @property
    def step_measured(self) -> float: ...
    @property
    def error(self) -> float: ...
    @property
    def inside(self) -> bool: ...


def predictions_table(predictions: Sequence[Prediction]) -> Table:
    """The first is the run as it is; speed-ups are to it."""
    table = Table(title="what it would buy (interval below each value)", title_justify="left")
    for name in ("change", "step", "samples/s", "epoch", "run", "cost", "memory", "limit", "speed-up"):
        table.add_column(name)
    base = predictions[0].run.value
    for prediction in predictions:
        table.add_row(
            _change(prediction),
            _shown(prediction.step, format_seconds),
            _shown(prediction.samples_per_second, lambda value: f"{value:.0f}"),
            _shown(prediction.epoch, format_seconds),
            _shown(prediction.run, format_seconds),
            _shown(prediction.usd, format_usd),
            _shown(prediction.memory, format_bytes),
            prediction.limit,
            f"{base / prediction.run.value:.2f}x" if prediction.run.value else "n/a",
        )
    return table


def _change(prediction: Prediction) -> str:
    text = named(prediction.changes) or "as it is"
    epochs = prediction.break_even_epochs
    return text if epochs is None else f"{text}\npays from epoch {epochs} on"


def scores_table(scores: Sequence[Scored]) -> Table:
    """A row for each prediction that has a run."""
    table = Table(title="predictions and the runs that followed", title_justify="left")
    for name in ("predicted in", "change", "run", "step predicted", "measured", "error", "in interval"):
        table.add_column(name)
    for score in scores:
        table.add_row(
            score.made_in,
            named(score.changes),
            score.run,
            format_seconds(score.step_predicted),
            format_seconds(score.step_measured),
            f"{100 * score.error:+.1f} %",
            "yes" if score.inside else "no",
        )
    return table


def named(changes: Mapping[str, Any]) -> str:
    """Changes as on the command line."""
    return ", ".join(f"{key}={value}" for key, value in changes.items())


def _shown(interval: Interval | None, form: Any) -> str:
    if interval is None:
        return "n/a"
    return f"{form(interval.value)}\n{form(interval.low)} to {form(interval.high)}"
