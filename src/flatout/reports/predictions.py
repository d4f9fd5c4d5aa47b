"""Alternatives side by side, and how well earlier predictions held."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flatout.diagnosis.conformal import QUANTITIES, Score, interval_factors
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.what_if import LEVEL, Prediction
from flatout.units import format_bytes, format_seconds, format_usd

FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step", "step", format_seconds),
    ("samples/s", "samples_per_second", lambda value: f"{value:.0f}"),
    ("epoch", "epoch", format_seconds),
    ("run", "run", format_seconds),
    ("cost", "usd", format_usd),
    ("memory", "memory", format_bytes),
)


def predictions_table(predictions: Sequence[Prediction]) -> Table:
    """The first is the run as it is; speed-up and limit stand below each change. Figures that nothing is known of have
    no column, nor has the epoch beside all others: what names the change is never cut on a terminal of 80."""
    known = [each for each in FIGURES if any(getattr(prediction, each[1]) is not None for prediction in predictions)]
    known = [each for each in known if len(known) < len(FIGURES) or each[0] != "epoch"]
    title = f"what it would buy (below each value: what {100 * LEVEL:.0f} % of outcomes stay within)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 1, 0), pad_edge=False)
    table.add_column("change", overflow="fold")
    for name, _, _ in known:
        table.add_column(name, overflow="fold", width=10)
    base = predictions[0].run.value
    for prediction in predictions:
        figures = [_shown(getattr(prediction, field), form) for _, field, form in known]
        table.add_row(_change(prediction, base), *figures)
    return table


def _change(prediction: Prediction, base: float) -> str:
    """One change a line, then how much faster the whole run gets and what sets its pace."""
    lines = [f"{key}={value}" for key, value in prediction.changes.items()] or ["as it is"]
    faster = f"{base / prediction.run.value:.2f}x" if prediction.run.value else "n/a"
    lines.append(f"{'speed not known' if 'cost.instance' in prediction.changes else faster}, {prediction.limit}")
    if prediction.break_even_epochs is not None:
        lines.append(f"pays from epoch {prediction.break_even_epochs} on")
    return "\n".join(lines)


def scores_table(scores: Sequence[Score]) -> Table:
    """A row for each figure of a prediction that has a run."""
    table = Table(
        title="predictions and the runs that followed",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("predicted in", "change", "run", "of", "predicted", "measured", "error", "inside"):
        table.add_column(name, overflow="fold")
    for score in scores:
        found = score.outcome
        form = format_bytes if found.quantity == "memory" else format_seconds
        table.add_row(
            score.made_in,
            named(score.changes),
            score.run,
            found.quantity,
            form(found.predicted),
            form(found.measured),
            f"{100 * found.error:+.1f} %",
            "yes" if score.inside else "no",
        )
    return table


def coverage_lines(scores: Sequence[Score]) -> list[str]:
    """Of each quantity: how far off, how often inside, and how wide the next intervals will be for it."""
    factors, lines = interval_factors(each.outcome for each in scores), []
    for name in QUANTITIES:
        chosen = [each for each in scores if each.outcome.quantity == name]
        if chosen:
            errors, inside = [abs(each.outcome.error) for each in chosen], sum(each.inside for each in chosen)
            mean = sum(errors) / len(errors)
            lines.append(
                f"{name}: mean absolute error {100 * mean:.1f} %, worst {100 * max(errors):.0f} %; "
                f"{inside} of {len(chosen)} inside their interval ({100 * inside / len(chosen):.0f} %, meant to be "
                f"{100 * LEVEL:.0f} %); the next intervals are {factors.get(name, 1.0):.2f} times the model's own"
            )
    return lines


def named(changes: Mapping[str, Any]) -> str:
    """Changes as on the command line."""
    return ", ".join(f"{key}={value}" for key, value in changes.items())


def _shown(interval: Interval | None, form: Callable[[float], str]) -> str:
    if interval is None:
        return "n/a"
    low, high = form(interval.low), form(interval.high)
    if low.partition(" ")[2] == high.partition(" ")[2]:  # one unit for both
        low = low.partition(" ")[0]
    return f"{form(interval.value)}\n{low} to {high}"
