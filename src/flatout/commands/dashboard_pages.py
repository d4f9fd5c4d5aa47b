"""Pages of the dashboard around the fragments of `Board`: shells that a stream fills, comparison, what-if, cache."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.analysis.comparison import compare
from flatout.commands.compare import read_sides
from flatout.commands.dashboard import PLACES, Board
from flatout.commands.predict import predict_changes
from flatout.config.loading import parse_assignments
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.what_if import Prediction
from flatout.errors import FlatoutError
from flatout.reports.charts import Point, Series, line_chart
from flatout.reports.compare_page import comparison_body, comparison_title
from flatout.reports.live_page import shell
from flatout.reports.live_page import static_file as static_file
from flatout.reports.page import join_markup, note, paragraph, section, shown, table
from flatout.runs.following import StretchedCurves
from flatout.runs.glance import Glance
from flatout.units import format_seconds, format_usd
from flatout.untrusted import read_json

_AXES = {"step": "step", "time": "minutes", "usd": "dollars"}
_KNOBS = (
    ("data.workers", "workers", "0", "32"),
    ("data.batch_size", "batch size", "1", "4096"),
    ("train.epochs", "epochs", "1", "500"),
)


def runs_shell() -> str:
    """The list; runs.js fills it."""
    body = Markup(
        "<header><h1>Runs</h1></header>\n<main>\n"
        '<form class="filters" role="search"><label>search <input id="search" type="search" autocomplete="off"></label>'
        '<label>status <select id="status"><option value="">all</option><option>running</option>'
        "<option>completed</option><option>stopped</option><option>failed</option></select></label>"
        '<label>group by <select id="group"><option value="">nothing</option></select></label>'
        '<label>column <select id="column"><option value="">add a key …</option></select></label>'
        '<button type="button" id="compare" disabled>compare</button></form>\n'
        '<div class="scroll" tabindex="0" role="region" aria-label="runs"><table id="runs"><thead></thead></table>'
        '</div><p id="count" class="dim" role="status">reading …</p>\n</main>'
    )
    return shell("flatout: runs", body, "/events/runs", ("page.js", "runs.js"))


def run_shell(glance: Glance, may_act: bool) -> str:
    """One run: empty places that the stream fills. Acts are offered to who has the token."""
    places = join_markup(Markup('<div id="f-{}"></div>').format(name) for name in PLACES)
    stop = Markup('<button type="button" id="stop" data-key="{}">stop with a checkpoint</button>').format(glance.key)
    acts = Markup(
        '<p class="acts"><button type="button" id="notify" hidden>notify me of alarms</button> {}</p>'
    ).format(stop if may_act and glance.status == "running" else "")
    body = Markup('<header><div id="f-head"><h1>{}</h1></div>{}</header>\n<main>{}\n{}</main>').format(
        shown(glance.name), acts, places, _what_if_form(glance.key)
    )
    return shell(f"flatout: {glance.name}", body, f"/events/run/{glance.key}")


def _what_if_form(key: str) -> Markup:
    knob = Markup(
        '<label>{0} <input type="range" name="{1}" min="{2}" max="{3}" value="{2}" data-unset="1">'
        "<output>as it is</output></label>"
    )
    knobs = join_markup(knob.format(title, name, low, high) for name, title, low, high in _KNOBS)
    instance = Markup('<label>instance <input name="cost.instance" autocomplete="off" placeholder="as it is"></label>')
    form = Markup('<form id="what-if" data-key="{}">{}{}</form><div id="what-if-answer" role="status"></div>')
    how = paragraph(
        "Move a slider: the answer is what flatout predict gives, with its interval. Nothing is stored.", "dim"
    )
    return section("What if?", how, form.format(key, knobs, instance), anchor="what-if-section")


def what_if(board: Board, key: str, changes: Sequence[tuple[str, str]]) -> str:
    """A table of the run as it is and changed; a sentence where it cannot be told."""
    glance = board.glance(key)
    try:
        assignments = parse_assignments([f"{name}={value}" for name, value in changes])
        found = predict_changes(glance.directory, [assignments] if assignments else [], keep=False)
        return str(
            table(("change", "step", "samples/s", "run", "cost", "limit"), [_prediction(each) for each in found])
        )
    except FlatoutError as error:
        return str(note(str(error), "warn"))


def _prediction(found: Prediction) -> list[str]:
    def shown_as(interval: Interval | None, form: Callable[[float], str]) -> str:
        return "n/a" if interval is None else f"{form(interval.value)} ({form(interval.low)} to {form(interval.high)})"

    changes = ", ".join(f"{key}={value}" for key, value in found.changes.items())
    return [
        changes or "as it is",
        shown_as(found.step, format_seconds),
        shown_as(found.samples_per_second, lambda value: f"{value:.0f}"),
        shown_as(found.run, format_seconds),
        shown_as(found.usd, format_usd),
        found.limit,
    ]


def comparison_shell(keys: Sequence[str], by: str) -> str:
    query = "&".join(f"run={key}" for key in keys)
    links = join_markup(
        Markup('<a href="/compare?{}&by={}"{}>by {}</a>').format(
            query, axis, Markup(' aria-current="page"') if axis == by else "", name
        )
        for axis, name in _AXES.items()
    )
    body = Markup(
        '<header><div id="f-title"><h1>Comparison</h1></div><nav aria-label="axis">{}</nav></header>\n'
        '<main><div id="f-overlay"></div><div id="f-body"></div></main>'
    ).format(links)
    return shell("flatout: comparison", body, f"/events/compare?{query}&by={by}")


def comparison_fragments(board: Board, keys: Sequence[str], by: str) -> dict[str, str]:
    """Overlaid losses by step, time or dollars, then the comparison; a note where runs cannot be compared."""
    try:
        glances = [board.glance(key) for key in keys]
        found = {"overlay": section("Training loss", _overlay(board, glances, by if by in _AXES else "step"))}
        if len({each.directory for each in glances}) < 2:
            return {key: str(text) for key, text in {**found, "body": note("choose two runs or more")}.items()}
        sides = read_sides(list(dict.fromkeys(each.directory for each in glances)))
        compared = compare(sides)
        title = Markup("<h1>{}</h1>").format(comparison_title(compared))
        return {
            key: str(text) for key, text in (found | {"title": title, "body": comparison_body(compared, sides)}).items()
        }
    except FlatoutError as error:
        return {"body": str(note(str(error), "bad"))}


def _overlay(board: Board, glances: Sequence[Glance], by: str) -> Markup:
    series = [Series(each.name, _loss(board.curves(each), by, board.usd_per_second(each))) for each in glances]
    drawn = [each for each in series if each.points]
    return line_chart("Loss of each step", drawn, _AXES[by], height=260) or paragraph("No step yet.", "dim")


def _loss(curves: StretchedCurves, by: str, usd_per_second: float | None) -> list[Point]:
    steps, times, low, _ = (values.tolist() for values in curves.points("loss"))
    start = next((each for each in times if math.isfinite(each)), 0.0)
    factor = {"time": 1 / 60, "usd": usd_per_second or 0.0}.get(by, 0.0)
    if by == "usd" and usd_per_second is None:
        return []
    at = steps if by == "step" else [factor * (each - start) for each in times]
    return [(x, y) for x, y in zip(at, low, strict=True) if math.isfinite(x) and math.isfinite(y)]


def cache_page() -> str:
    """Shared batches: jobs, leases, hits."""
    from flatout.commands.serve import look

    try:
        values = look()
        jobs = [(name, job["stream"], job["position"], job["waiting"]) for name, job in values["jobs"].items()]
        content = [
            table(("figure", "value"), [(k, v) for k, v in values.items() if isinstance(v, int | float | str)]),
            table(("count", "value"), list(values["counts"].items())),
            table(("job", "stream", "position", "waits"), jobs),
        ]
    except FlatoutError as error:
        content = [paragraph(str(error), "dim")]
    body = Markup("<header><h1>Shared batches</h1></header><main>{}</main>").format(section("Service", *content))
    return shell("flatout: shared batches", body, "")


def plans_page(board: Board) -> str:
    """Stored plans and suites under the folders, newest last."""
    content = [section(f"Plan {path.stem}", _plan(path)) for path in board.files("plans/*.json")]
    content += [section(f"Suite {path.parent.name}", _suite(path)) for path in board.files("*/table.json")]
    body = Markup("<header><h1>Plans and suites</h1></header><main>{}</main>").format(
        join_markup(content) or paragraph("None yet: flatout plan and flatout suite make them.", "dim")
    )
    return shell("flatout: plans and suites", body, "")


def _plan(path: Path) -> Markup:
    with suppress(FlatoutError, OSError, KeyError, TypeError, ValueError):
        options = read_json(path)["options"]
        rows = [
            (each["machine"], each["limit"], _interval(each["hours"]), _interval(each["usd"])) for each in options[:40]
        ]
        return table(("machine", "limit", "hours", "dollars"), rows)
    return note(f"{path} cannot be read")


def _interval(found: Any) -> str:
    return f"{found['value']:.3g} ({found['low']:.3g} to {found['high']:.3g})" if found else "n/a"


def _suite(path: Path) -> Markup:
    """As `flatout suite` has filled it so far; the mean of repeats is in its own table.html."""
    with suppress(FlatoutError, OSError, KeyError, TypeError, AttributeError, ValueError):
        rows = read_json(path)["rows"]
        titles = list(dict.fromkeys(title for row in rows for title in row["values"]))
        cells = [[row["name"], *(_cell(row["values"].get(each)) for each in titles), row["comments"]] for row in rows]
        return table(("experiment", *titles, "comment"), cells)
    return note(f"{path} cannot be read")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
