"""Runs in a notebook: whole pages in a frame of their own, and a small live view without style sheets or scripts."""

import math

from markupsafe import Markup

from flatout.analysis.comparison import Comparison
from flatout.analysis.live import LiveFigures
from flatout.diagnosis.verdict import Explanation
from flatout.diagnosis.what_if import LEVEL, Prediction
from flatout.reports.compare_page import comparison_body, comparison_title
from flatout.reports.html import finding_sections
from flatout.reports.page import join_markup, page, paragraph, section, shown, table
from flatout.reports.predictions import FIGURES
from flatout.runs.following import StretchedCurves
from flatout.units import format_seconds, format_usd

_WIDTH, _HEIGHT = 560, 120


def framed(document: str, height: int = 640) -> str:
    """A page of ours inside another page: its styles and script stay its own, and it can load nothing."""
    frame = Markup('<iframe sandbox="allow-scripts" srcdoc="{}" width="100%" height="{}" style="border:0"></iframe>')
    return str(frame.format(document, height))


def explanation_html(explanation: Explanation) -> str:
    findings = finding_sections([finding.to_dict() for finding in explanation.findings])
    body = section("What holds it back", paragraph(explanation.verdict, "lead"), *findings)
    return framed(page("flatout explain", Markup("<main>{}</main>").format(body), scripted=False), 420)


def prediction_html(found: Prediction) -> str:
    """Every figure with its interval, and what sets the pace."""
    figures = [(title, getattr(found, name), form) for title, name, form in FIGURES]
    rows = [
        (title, form(each.value), f"{form(each.low)} to {form(each.high)}")
        for title, each, form in figures
        if each is not None
    ]
    changes = ", ".join(f"{key}={value}" for key, value in found.changes.items()) or "as it is"
    what = table(("figure", "predicted", f"{100 * LEVEL:.0f} % of outcomes stay within"), rows)
    notes = [paragraph(text, "dim") for text in found.notes]
    body = section(changes, what, paragraph(f"What sets the pace: {found.limit}."), *notes)
    return framed(page("flatout predict", Markup("<main>{}</main>").format(body), scripted=False), 360)


def live_html(name: str, figures: LiveFigures, curves: StretchedCurves) -> str:
    """Progress, figures and the loss so far; replaced every second or two while training goes on."""
    rate, wait = figures.samples_per_second, figures.data_wait
    facts = [
        f"step {figures.step or 0:,} of {figures.total_steps:,}" if figures.total_steps else "starting",
        "" if figures.seconds_left is None else f"{format_seconds(figures.seconds_left)} left",
        "" if figures.loss is None else f"loss {figures.loss:.4g}",
        "" if figures.metric_text is None else f"{figures.metric} {figures.metric_text}",
        "" if rate is None else f"{rate:,.0f} samples/s",
        "" if wait is None else f"data wait {100 * wait:.0f} %",
        "" if figures.usd is None else format_usd(figures.usd),
    ]
    bar = Markup('<progress value="{:.4f}" style="width:100%"></progress>').format(figures.progress or 0.0)
    told = Markup("<div><b>{}</b> {}</div>").format(shown(name), " · ".join(each for each in facts if each))
    return str(join_markup([told, bar, _loss_line(curves)]))


def _loss_line(curves: StretchedCurves) -> Markup:
    steps, _, low, _ = (values.tolist() for values in curves.points("loss"))
    points = [(x, y) for x, y in zip(steps, low, strict=True) if math.isfinite(y)]
    if len(points) < 2:
        return Markup("")
    (first, last), heights = (points[0][0], points[-1][0]), [y for _, y in points]
    lowest, room = min(heights), (max(heights) - min(heights)) or 1.0
    path = " ".join(
        f"{_WIDTH * (x - first) / (last - first):.1f},{_HEIGHT * (1 - (y - lowest) / room):.1f}" for x, y in points
    )
    return Markup(
        '<svg width="{}" height="{}" role="img" aria-label="loss from {:.4g} to {:.4g}" style="overflow:visible">'
        '<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.2"/></svg>'
    ).format(_WIDTH, _HEIGHT, heights[0], heights[-1], path)


def comparison_html(found: Comparison) -> str:
    """A comparison without the curves, which need the runs' own files."""
    title = comparison_title(found)
    body = Markup("<header><h1>{}</h1></header><main>{}</main>").format(title, comparison_body(found, ()))
    return framed(page("flatout compare", body, scripted=False))
