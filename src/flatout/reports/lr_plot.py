"""The curve of a learning-rate range test as one self-contained page."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.reports.charts import Point, Series, line_chart
from flatout.reports.page import page, pairs, paragraph, section, shown
from flatout.runs.directory import write_text

_NAMES = {
    "steepest": "steepest fall",
    "minimum_tenth": "a tenth of the lowest",
}
_ABOUT = {
    "steepest": "where the loss falls fastest: a good peak rate for a schedule with a warm-up",
    "minimum_tenth": "a tenth of the rate with the lowest loss: a careful choice",
}


def write_lr_plot(path: Path, name: str, result: dict[str, Any]) -> None:
    """`result` is what a range test found: points and suggestions."""
    rates = [math.log10(point["learning_rate"]) for point in result["points"]]
    top = _top([point["smoothed"] for point in result["points"]])
    series = [
        Series(title, _points(rates, result, key, top), style, faint)
        for title, key, style, faint in (("each step", "loss", "s7", True), ("smoothed", "smoothed", "s0", False))
    ]
    found = {label: rate for label, rate in result["suggestions"].items() if rate is not None}
    marks = [(math.log10(rate), f"{_NAMES.get(label, label)}: {rate:.3g}") for label, rate in found.items()]
    chart = line_chart(
        "Training loss",
        series,
        "learning rate (logarithmic)",
        note=f"up to {top:.3g}: what is above is the divergence at the end",
        marks=marks,
        height=320,
        log_x=True,
        named_marks=True,
    )
    rows = [(f"{rate:.3g}", _ABOUT.get(label, label.replace("_", " "))) for label, rate in found.items()]
    none = paragraph("None: the loss fell too little, or for too few steps, to tell. Try a wider --low and --high.")
    title = f"Learning-rate range test: {name}"
    body = Markup("<header><h1>{}</h1></header><main>{}{}</main>").format(
        shown(title), section("Loss by learning rate", chart), section("Suggestions", pairs(rows) if rows else none)
    )
    write_text(path, page(title, body))


def _top(smoothed: Sequence[float]) -> float:
    """As far above the start as half of the fall from there: the valley fills the plot, whatever comes after it."""
    start, lowest = smoothed[0], min(smoothed)
    return start + 0.5 * max(start - lowest, 0.1 * abs(start))


def _points(rates: list[float], result: dict[str, Any], key: str, top: float) -> list[Point]:
    """What is above the plot ends at its edge."""
    values = [min(point[key], top) for point in result["points"]]
    first_above = next((n for n, value in enumerate(values) if value >= top and n > len(values) // 2), len(values) - 1)
    return list(zip(rates, values, strict=True))[: first_above + 1]
