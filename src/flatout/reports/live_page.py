"""A run while it goes on: the parts of its page that change from second to second, each as one piece of markup."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from flatout.analysis.details import numbers
from flatout.analysis.epoch_ledger import part_order
from flatout.analysis.live import Alarm, LiveFigures
from flatout.analysis.rank_spans import RankSpans
from flatout.config.tasks import metric_named
from flatout.reports.charts import Point, Series, line_chart
from flatout.reports.page import join_markup, note, paragraph, pill, preformatted, shown, tiles
from flatout.reports.strips import stacked, strips
from flatout.runs.following import StretchedCurves
from flatout.runs.tables import EPOCH_COLUMNS
from flatout.units import format_seconds, format_usd

STATUS_KINDS = {"completed": "good", "running": "live", "stopped": "warn"}


def live_headline(
    label: str, name: str, status: str, cause: str | None, emulated: bool, alarms: Sequence[Alarm]
) -> Markup:
    """Which run it is, its status and whatever must not be missed."""
    pills = [pill(status, STATUS_KINDS.get(status, "bad"))] + ([pill("emulated device", "warn")] if emulated else [])
    notes = [note(cause, "warn" if status == "stopped" else "bad")] if cause else []
    notes += [note(alarm.text, "bad") for alarm in alarms]
    recipe = paragraph(name, "dim") if name != label else Markup("")
    return Markup("<h1>{}</h1>{}{}{}").format(shown(label), join_markup(pills), recipe, join_markup(notes))


def live_tiles(figures: LiveFigures, running: bool) -> Markup:
    """Progress, time, quality, speed, waiting and money."""
    done = None if figures.progress is None else f"{100 * figures.progress:.1f} %"
    steps = f"step {figures.step or 0:,} of {figures.total_steps:,}" if figures.total_steps else ""
    left = f"{format_seconds(figures.seconds_left)} left" if figures.seconds_left is not None else ""
    rate = figures.samples_per_second
    wait, lately = figures.data_wait, "over the last steps" if running else ""
    loss = "" if figures.loss is None else f"loss {figures.loss:.4g}"
    to_come = f"about {format_usd(figures.usd_left)} to come" if figures.usd_left is not None else ""
    return tiles(
        [
            ("progress", done, steps),
            ("wall clock", format_seconds(figures.wall_seconds), left),
            (figures.metric or "metric", figures.metric_text, loss),
            ("samples/s", None if rate is None else f"{rate:,.0f}", lately),
            ("waiting for data", None if wait is None else f"{100 * wait:.0f} %", lately),
            ("cost", format_usd(figures.usd), to_come or ("" if figures.usd is not None else "no price set")),
        ]
    )


def live_curves(curves: StretchedCurves, epochs: Sequence[Mapping[str, str]], is_sampled: bool) -> Markup:
    """Loss, metrics, learning rate and step time from stretches: the lowest and highest of each are drawn."""
    ends = [end if end is not None else n + 1.0 for n, end in enumerate(numbers(epochs, "step"))]
    note_text = "from a sample of the steps until all were read" if is_sampled else ""
    loss = [
        Series("each step", _points(curves, "loss"), "s7", faint=True),
        Series("training, by epoch", _values(ends, epochs, "train_loss"), "s0", dots=True),
        Series("validation", _values(ends, epochs, "val_loss"), "s1", dots=True),
    ]
    times = [
        Series("step", _points(curves, "step_seconds", 1e3), "s0"),
        Series("of it, waiting for data", _points(curves, "data_wait_seconds", 1e3), "data_wait"),
    ]
    rates = Series("learning rate", _points(curves, "learning_rate"), "s3")
    charts = [
        line_chart("Loss", [each for each in loss if each.points], "step", note=note_text),
        _metrics(ends, epochs),
        line_chart("Learning rate", [rates], "step", from_zero=True),
        line_chart("Step time", times, "step", " ms", note_text, from_zero=True),
    ]
    drawn = join_markup(chart for chart in charts if chart)
    return Markup('<div class="pair">{}</div>').format(drawn) if drawn else paragraph("No step yet.", "dim")


def _metrics(ends: Sequence[float], epochs: Sequence[Mapping[str, str]]) -> Markup:
    names = [name for name in (epochs[-1] if epochs else {}) if name not in (*EPOCH_COLUMNS, "val_loss")]
    series = []
    for metric in map(metric_named, names):
        points = [(x, y and metric.factor * y) for x, y in _values(ends, epochs, metric.name)]
        series.append(Series(metric.title, points, dots=True))
    unit = metric_named(names[0]).unit if names else ""
    return line_chart("Accuracy" if unit == " %" else "Metrics", series, "step", unit if unit == " %" else "")


def _points(curves: StretchedCurves, column: str, factor: float = 1.0) -> list[Point]:
    """Both ends of every stretch where they differ; what is not finite is left out."""
    points: list[Point] = []
    steps, _, low, high = curves.points(column)
    for step, least, most in zip(steps.tolist(), low.tolist(), high.tolist(), strict=True):
        points += [(step, factor * least)] if math.isfinite(least) else []
        points += [(step, factor * most)] if math.isfinite(most) and most != least else []
    return points


def _values(ends: Sequence[float], epochs: Sequence[Mapping[str, str]], column: str) -> list[Point]:
    return [(x, y) for x, y in zip(ends, numbers(epochs, column), strict=True) if y is not None]


def ranks_view(ranks: Mapping[int, RankSpans], lateness: str) -> Markup:
    """The parts of every rank's time, one bar each; nothing of a run with one rank."""
    if len(ranks) < 2:
        return Markup("")
    totals = {rank: sum(each.parts.values()) for rank, each in ranks.items()}
    bars = [
        (f"rank {rank}", stacked(each.parts, totals[rank], format_seconds), format_seconds(totals[rank]))
        for rank, each in ranks.items()
        if totals[rank]
    ]
    names = sorted({name for each in ranks.values() for name, value in each.parts.items() if value > 0}, key=part_order)
    keys = [(name, name.replace("_", " "), "") for name in names]
    chart = strips("Ranks, last attempt", bars, (0.0, max(totals.values())), " s", kind="ledger", keys=keys)
    return join_markup([chart, paragraph(lateness, "dim")] if lateness else [chart])


def log_tail(text: str) -> Markup:
    """The end of log.txt."""
    return preformatted(text) if text else paragraph("Nothing was said yet.", "dim")


def runs_shell() -> str:
    """The list of runs; runs.js fills it."""
    body = Markup(
        "<header><h1>Runs</h1></header>\n<main>\n"
        '<form class="filters" role="search"><label>search <input id="search" type="search" autocomplete="off"></label>'
        '<label>status <select id="status"><option value="">all</option><option>running</option>'
        "<option>completed</option><option>stopped</option><option>failed</option></select></label>"
        '<label>group by <select id="group"><option value="">nothing</option></select></label>'
        '<details id="columns"><summary>columns</summary><fieldset><legend class="dim">shown</legend></fieldset>'
        '<label>add a key of the recipes <select id="column"><option value="">choose …</option></select></label>'
        '</details><button type="button" id="compare" disabled>compare</button></form>\n'
        '<div class="scroll" tabindex="0" role="region" aria-label="runs"><table id="runs"><thead></thead></table>'
        '</div><p class="below"><span id="count" class="dim" role="status">reading …</span> '
        '<button type="button" id="more" hidden>show all</button></p>\n</main>'
    )
    return shell("flatout: runs", body, "/events/runs", ("page.js", "runs.js"))


def shell(title: str, body: Markup, stream: str, scripts: Sequence[str] = ("page.js", "dashboard.js")) -> str:
    """A page of the dashboard: styles and scripts come from the server, which forbids everything else. `stream` is
    the address of what changes."""
    links = join_markup(Markup('<script src="/static/{}" defer></script>').format(name) for name in scripts)
    return str(
        Markup(
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{}</title>\n'
            '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="/static/page.css">\n'
            '<link rel="stylesheet" href="/static/dashboard.css">\n{}\n</head>\n'
            '<body data-stream="{}">\n<nav class="top" aria-label="Pages"><a href="/">flatout</a>'
            '<a href="/suites">suites</a><a href="/plans">plans</a><a href="/cache">shared batches</a>'
            '<span id="link" role="status" class="dim"></span></nav>\n{}\n</body>\n</html>\n'
        ).format(shown(title), links, stream, body)
    )


def static_file(name: str) -> str | None:
    """A style or script of the pages; None for any other name."""
    if name not in ("page.css", "page.js", "dashboard.css", "dashboard.js", "runs.js"):
        return None
    return (Path(__file__).parent / name).read_text("utf-8")
