"""Pages of the dashboard around what is followed: shells for a stream, comparison, what-if, suites, plans, cache."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.analysis.comparison import compare
from flatout.analysis.suite import row_from_json
from flatout.commands.compare import read_sides
from flatout.commands.dashboard import Board
from flatout.commands.dashboard_run import WatchedRuns
from flatout.commands.predict import predict_changes
from flatout.config.loading import parse_assignments
from flatout.cost import load_catalogue
from flatout.diagnosis.what_if import Prediction
from flatout.errors import FlatoutError
from flatout.reports.charts import Point, Series, line_chart
from flatout.reports.compare_page import comparison_body, comparison_title
from flatout.reports.curves import time_axis
from flatout.reports.live_page import shell
from flatout.reports.page import join_markup, note, paragraph, pill, section, shown, table
from flatout.reports.plan_text import interval_text
from flatout.reports.predictions import named
from flatout.reports.suite_table import suite_sections
from flatout.runs.following import StretchedCurves
from flatout.runs.glance import Glance
from flatout.units import format_bytes, format_seconds, format_share, format_usd
from flatout.untrusted import read_json

_AXES = {"step": "step", "time": "time", "usd": "dollars"}
_PLACES = (
    *("damage", "tiles", "findings", "curves", "time", "epochs", "ranks", "timeline", "machine", "cost", "what-if"),
    *("answers", "log", "files", "setup"),
)
"""The parts of a run's page from top to bottom, below its head; all but one come with the stream."""
_KNOBS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("data.workers", "workers", (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)),
    ("data.batch_size", "batch size", (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
    ("train.epochs", "epochs", (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300)),
    ("ranks", "ranks", (1, 2, 4, 8, 16)),
    ("link", "link between machines", ("100 Mb/s", "1 Gb/s", "10 Gb/s", "25 Gb/s", "100 Gb/s")),
)
_READING = (FlatoutError, OSError, KeyError, TypeError, AttributeError, ValueError)
"""What a file that somebody else wrote, or is just writing, can raise."""


def run_shell(runs: WatchedRuns, glance: Glance, may_act: bool) -> str:
    """One run: empty places that the stream fills. Acts are offered to who has the token."""
    filled = {"what-if": _what_if_form(glance, runs.board.config(glance))}
    places = join_markup(Markup('<div id="f-{}">{}</div>').format(name, filled.get(name, "")) for name in _PLACES)
    stop = Markup('<button type="button" id="stop" data-key="{}">stop with a checkpoint</button>').format(glance.key)
    notify = Markup('<button type="button" id="notify" hidden>notify me of alarms</button> {}')
    acts = Markup('<p class="acts">{}</p>').format(notify.format(stop if may_act else ""))
    acts = acts if glance.status == "running" else Markup("")
    body = Markup('<header><div id="f-head"><h1>{}</h1></div>{}</header>\n<main>{}</main>').format(
        shown(glance.label), acts, places
    )
    return shell(f"flatout: {glance.label}", body, f"/events/run/{glance.key}")


def _what_if_form(glance: Glance, config: Mapping[str, Any]) -> Markup:
    """A slider goes over a list of values; it begins where the run is, as far as its recipe says."""
    ranks = glance.summary.get("world_size") or 1
    knobs = [_knob(key, title, values, _setting(config, key, ranks)) for key, title, values in _KNOBS]
    names = sorted({name for _, part, name, _ in load_catalogue(None).figures if part == "instances"})
    choices = join_markup(Markup("<option>{}</option>").format(name) for name in names)
    instance = Markup(
        '<label>instance <select name="cost.instance"><option value="">as it is</option>{}</select></label>'
    ).format(choices)
    form = Markup('<form id="what-if" data-key="{}">{}{}</form><div id="what-if-answer" role="status"></div>')
    how = paragraph("Move a slider: the answer is flatout predict's, with its interval. Nothing is stored.", "dim")
    return section("What if?", how, form.format(glance.key, join_markup(knobs), instance), anchor="what-if-section")


def _setting(config: Mapping[str, Any], key: str, ranks: int) -> Any:
    """None where the recipe leaves it open."""
    if key == "ranks":
        return ranks
    part, _, name = key.partition(".")
    value = (config.get(part) or {}).get(name) if name else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _knob(key: str, title: str, values: Iterable[Any], now: Any) -> Markup:
    choices = sorted({*values, now}) if isinstance(now, int) else list(values)
    at = choices.index(now) if isinstance(now, int) else 0
    return Markup(
        '<label>{0} <input type="range" name="{1}" min="0" max="{2}" value="{3}" data-values="{4}" '
        'aria-valuetext="{5}"><output>{5}</output></label>'
    ).format(
        title,
        key,
        len(choices) - 1,
        at,
        "|".join(map(str, choices)),
        "as it is" if now is None else f"{now}, as it is",
    )


def what_if(runs: WatchedRuns, key: str, changes: Sequence[tuple[str, str]]) -> str:
    """A table of the run as it is and changed; a sentence where it cannot be told."""
    glance = runs.board.glance(key)
    try:
        assignments = parse_assignments([f"{name}={value}" for name, value in changes])
        found = predict_changes(glance.directory, [assignments] if assignments else [], keep=False)
        rows = table(("change", "step", "samples/s", "run", "cost", "limit"), [_prediction(each) for each in found])
        return str(join_markup([rows, *(paragraph(text, "dim") for each in found[1:] for text in each.notes)]))
    except FlatoutError as error:
        return str(note(str(error), "warn"))


def _prediction(found: Prediction) -> list[str]:
    told = found.to_dict()
    return [
        named(found.changes) or "as it is",
        _interval(told["step"], format_seconds),
        _interval(told["samples_per_second"], lambda value: f"{value:.0f}"),
        _interval(told["run"], format_seconds),
        _interval(told["usd"], format_usd),
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


def comparison_fragments(runs: WatchedRuns, keys: Sequence[str], by: str) -> dict[str, str]:
    """Overlaid losses by step, time or dollars, then the comparison; a note where runs cannot be compared."""
    try:
        glances = [runs.board.glance(key) for key in keys]
        found = {"overlay": section("Training loss", _overlay(runs, glances, by if by in _AXES else "step"))}
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


def _overlay(runs: WatchedRuns, glances: Sequence[Glance], by: str) -> Markup:
    series = [Series(each.label, _loss(runs.curves(each), by, runs.board.usd_per_second(each))) for each in glances]
    drawn, label = [each for each in series if each.points], _AXES[by]
    if by == "time":
        label, seconds = time_axis(max((each.points[-1][0] for each in drawn), default=0.0))
        drawn = [replace(each, points=[(x / seconds, y) for x, y in each.points]) for each in drawn]
    unpriced = [each.name for each in series if not each.points] if by == "usd" else []
    left_out = paragraph(f"No price is set for {', '.join(unpriced)}.", "dim") if unpriced else Markup("")
    chart = line_chart("Loss of each step", drawn, label, height=260)
    return join_markup([chart or paragraph("No step yet.", "dim"), left_out])


def _loss(curves: StretchedCurves, by: str, usd_per_second: float | None) -> list[Point]:
    steps, times, low, _ = (values.tolist() for values in curves.points("loss"))
    start = next((each for each in times if math.isfinite(each)), 0.0)
    if by == "usd" and usd_per_second is None:
        return []
    factor = (usd_per_second or 0.0) if by == "usd" else 1.0
    at = steps if by == "step" else [factor * (each - start) for each in times]
    return [(x, y) for x, y in zip(at, low, strict=True) if math.isfinite(x) and math.isfinite(y)]


# Pages of one piece


def plain_shell(name: str) -> str:
    """`name` is one of `_PLAIN`; its stream fills it."""
    title, _ = _PLAIN[name]
    body = Markup('<header><h1>{}</h1></header><main id="f-body"><p class="dim">reading …</p></main>').format(title)
    return shell(f"flatout: {title.lower()}", body, f"/events/{name}")


def plain_fragments(board: Board, name: str) -> dict[str, str]:
    return {"body": str(_PLAIN[name][1](board))}


def _cache(board: Board) -> Markup:
    """What the service of shared batches on this machine holds and does: batches, jobs, leases, hits."""
    from flatout.commands.serve import look

    try:
        return _service(look())
    except FlatoutError as error:
        return section("Service", paragraph(str(error), "dim"))


def _service(found: Mapping[str, Any]) -> Markup:
    counts = found["counts"]
    served = counts["hits"] + counts["waited"]
    made = f"{format_bytes(counts['made_bytes'])} in {format_seconds(counts['made_seconds'])} of work"
    reads = f"{served / counts['made']:.1f} times" if counts["made"] else "n/a"
    figures = [
        ("batches that are ready", f"{found['ready']:,}"),
        ("memory", f"{format_bytes(found['used_bytes'])} of {format_bytes(found['capacity_bytes'])}, {found['store']}"),
        ("being made (leases)", f"{found['leases']:,}"),
        (
            "served",
            f"{served:,}: {format_share(counts['hits'], served)} ready when asked for, {counts['waited']:,} waited for",
        ),
        ("each batch was read", reads),
        ("made", f"{counts['made']:,}, {made}"),
        ("denied", f"{counts['denied']:,}"),
        ("failures, expired leases", f"{counts['failures']:,}, {counts['expired']:,}"),
        ("evicted", f"{counts['evicted']:,}, {counts['evicted_needed']:,} of them still needed"),
        ("up for", format_seconds(found["seconds"])),
    ]
    jobs = [
        (
            name,
            job["stream"],
            f"{job['position']:,}",
            format_seconds(job["step_seconds"]),
            "yes" if job["waiting"] else "no",
        )
        for name, job in found["jobs"].items()
    ]
    listed = table(("job", "stream", "position", "step", "waits"), jobs) or paragraph("No job is connected.", "dim")
    return join_markup([section("Batches", table(("figure", "value"), figures)), section("Jobs", listed)])


def _suites(board: Board) -> Markup:
    """Every folder that a suite fills: its table so far, and what is being trained now."""
    rows, _ = board.rows()
    homes = {Path(row["directory"]).parent for row in rows if "/" in row["key"].partition("/")[2]}
    tables = {path.parent: path for path in board.files("*/table.json")}
    found = [
        _suite(home, tables.get(home), [row for row in rows if Path(row["directory"]).parent == home])
        for home in sorted(homes | tables.keys())
    ]
    return join_markup(found) or paragraph("None yet: flatout suite makes them.", "dim")


def _suite(home: Path, path: Path | None, runs: Sequence[Mapping[str, Any]]) -> Markup:
    going = [_going(row) for row in runs if row["status"] == "running"]
    done = sum(row["status"] == "completed" for row in runs)
    parts = [paragraph(f"{done} of {len(runs)} runs that began have completed.", "dim")]
    parts += [table(("training now", "progress", "left", "metric", "spent"), going)]
    if path is None:
        return section(home.name, *parts, paragraph("The table comes with the first experiment that ends.", "dim"))
    try:
        rows = [row_from_json(each) for each in read_json(path)["rows"]]
        return section(home.name, *parts, *suite_sections(rows)) if rows else section(home.name, *parts)
    except _READING:
        return section(home.name, *parts, note(f"{path} cannot be read"))


def _going(row: Mapping[str, Any]) -> list[Any]:
    link = Markup('<a href="/run/{}">{}</a>').format(row["key"], shown(row["label"]))
    done, left = row["progress"], row["seconds_left"]
    return [
        link,
        "n/a" if done is None else f"{100 * done:.0f} %",
        "n/a" if left is None else format_seconds(left),
        row["metric_text"] or "n/a",
        format_usd(row["usd"]),
    ]


def _plans(board: Board) -> Markup:
    """Stored plans under the folders."""
    content = [_plan(path) for path in board.files("plans/*.json")]
    return join_markup(content) or paragraph("None yet: flatout plan makes them.", "dim")


def _plan(path: Path) -> Markup:
    with suppress(*_READING):
        plan = read_json(path)
        best = set(plan.get("frontier") or ())
        rows = [
            (
                Markup("{} {}").format(shown(each["machine"]), pill("best", "good") if each["machine"] in best else ""),
                each["limit"],
                _interval(each["hours"], lambda value: format_seconds(3600 * value)),
                _interval(each["usd"], format_usd),
            )
            for each in plan["options"][:40]
        ]
        return section(f"Plan {path.stem}", table(("machine", "limit", "time", "cost"), rows))
    return section(f"Plan {path.stem}", note(f"{path} cannot be read"))


def _interval(found: Any, form: Callable[[float], str]) -> str:
    return interval_text(found, form) if found else "n/a"


_PLAIN: dict[str, tuple[str, Callable[[Board], Markup]]] = {
    "suites": ("Suites", _suites),
    "plans": ("Plans", _plans),
    "cache": ("Shared batches", _cache),
}
