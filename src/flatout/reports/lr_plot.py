"""The curve of a learning-rate range test as one self-contained page."""

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.reports.charts import Point, Series, line_chart
from flatout.reports.page import page, pairs, section, shown
from flatout.runs.directory import write_text


def write_lr_plot(path: Path, name: str, result: dict[str, Any]) -> None:
    """`result` is what a range test found: points and suggestions."""
    rates = [math.log10(point["learning_rate"]) for point in result["points"]]
    series = [
        Series(title, _points(rates, result, key), style, faint)
        for title, key, style, faint in (("loss", "loss", "s7", True), ("smoothed", "smoothed", "s0", False))
    ]
    found = {label.replace("_", " "): rate for label, rate in result["suggestions"].items() if rate is not None}
    marks = [(math.log10(rate), f"{label} {rate:.3g}") for label, rate in found.items()]
    chart = line_chart("Training loss", series, "learning rate", marks=marks, height=320, log_x=True)
    rows = [(label, f"{rate:.3g}") for label, rate in found.items()]
    title = f"Learning-rate range test: {name}"
    body = Markup("<header><h1>{}</h1></header><main>{}{}</main>").format(
        shown(title),
        section("Loss by learning rate", chart),
        section("Suggestions", pairs(rows) if rows else Markup("")),
    )
    write_text(path, page(title, body))


def _points(rates: list[float], result: dict[str, Any], key: str) -> list[Point]:
    return [(rate, point[key]) for rate, point in zip(rates, result["points"], strict=True)]
