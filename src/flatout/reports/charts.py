"""Charts as inline SVG: series in, Markup out. Text stays readable at any width, because only the curves stretch.

page.js adds values under the pointer and switches for series; without it every chart is complete.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from flatout.analysis.epoch_ledger import part_order
from flatout.reports.page import join_markup, printable, shown

MOST_POINTS = 1000  # per series: more than a screen has pixels to show
_LEAST_ROOM = 2e-3  # of the value: the labels of a curve that is nearly flat still differ
_MOST_DOTS = 100
_LARGEST = 1e100  # what is beyond has diverged, and would flatten all else
Point = tuple[float, float | None]


@dataclass(frozen=True)
class Series:
    """Points by ascending x; None (or a value that is not finite) leaves a gap."""

    name: str
    points: Sequence[Point]
    style: str = ""  # a colour class of page.css; by position where empty
    faint: bool = False
    dots: bool = False


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most about `most` points, with the lowest and highest of every stretch kept: a spike is never lost."""
    finite = [(x, y if y is not None and abs(y) < _LARGEST else None) for x, y in points]  # NaN is not smaller either
    if len(finite) <= most:
        return finite
    size = 2 * len(finite) / most
    kept: list[Point] = []
    for number in range(most // 2):
        stretch = range(int(number * size), int((number + 1) * size))
        rated = [(y, i) for i in stretch if (y := finite[i][1]) is not None]
        chosen = {min(rated)[1], max(rated)[1]} if rated else {stretch[0]}
        kept += [finite[i] for i in sorted(chosen)]
    return kept


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(rough))
    stride = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / stride - 1e-9)
    return [n * stride for n in range(first, math.floor(high / stride + 1e-9) + 1)]


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    unit: str = "",
    note: str = "",
    from_zero: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    height: int = 190,
    scatter: bool = False,
    log_x: bool = False,
    named_marks: bool = False,
) -> Markup:
    """Curves over x, or points where `scatter`. `unit` follows every value (" %", " s"); `marks` are vertical lines,
    `named_marks` of them have their names above the plot.
    `log_x`: every x is given as its logarithm to base 10, and written as what it stands for."""
    drawn = [Series(s.name, thin(s.points), s.style or f"s{i % 8}", s.faint, s.dots) for i, s in enumerate(series)]
    values = [y for s in drawn for _, y in s.points if y is not None]
    if not values:
        return Markup("")
    xs = [x for s in drawn for x, _ in s.points]
    frame = _Frame(min(xs), max(xs), *_extent(values, from_zero), height, log_x)
    groups = join_markup(_curve(i, s, frame, scatter) for i, s in enumerate(drawn))
    lines = join_markup(_mark(frame, x, name, "mark" if named_marks else "grid") for x, name in marks)
    return _figure(
        title,
        note,
        _summary(title, drawn, unit),
        frame,
        Markup("{}{}").format(lines, groups),
        _data(drawn, frame, x_label, unit),
        _switches(drawn),
        x_label,
        unit,
        _mark_names(frame, marks) if named_marks and marks else Markup(""),
    )


def scatter_chart(
    title: str, points: Sequence[Point], x_label: str, y_label: str, unit: str = "", note: str = ""
) -> Markup:
    """One dot per point, thinned evenly."""
    ordered = sorted((p for p in points if p[1] is not None), key=lambda p: p[0])
    stride = max(1, math.ceil(len(ordered) / MOST_POINTS))
    return line_chart(title, [Series(y_label, ordered[::stride])], x_label, unit, note, from_zero=True, scatter=True)


def area_chart(
    title: str, bins: Sequence[dict[str, float]], extent: tuple[float, float], x_label: str, note: str = ""
) -> Markup:
    """What every stretch of equal length consists of, stacked; names are colour classes, values shares of 1."""
    if not bins:
        return Markup("")
    names = sorted({name for each in bins for name, share in each.items() if share > 0}, key=part_order)
    frame = _Frame(*extent, 0.0, 100.0, 150)
    below, paths, width = [0.0] * len(bins), [], 1000 / len(bins)
    for name in names:
        above = [low + 100 * each.get(name, 0.0) for low, each in zip(below, bins, strict=True)]
        paths.append(
            Markup('<path class="{0} block" d="{1}"><title>{2}</title></path>').format(
                name, _band(below, above, width, frame), name.replace("_", " ")
            )
        )
        below = above
    keys = legend((name, name.replace("_", " "), "") for name in names)
    return _figure(title, note, f"{title}: {', '.join(names)}", frame, join_markup(paths), None, keys, x_label, " %")


def _band(below: Sequence[float], above: Sequence[float], width: float, frame: "_Frame") -> str:
    """Steps along the top from left to right, back along the bottom."""
    top = " ".join(f"L{n * width:.1f} {frame.y(v):.1f}H{(n + 1) * width:.1f}" for n, v in enumerate(above))
    bottom = " ".join(
        f"L{(n + 1) * width:.1f} {frame.y(below[n]):.1f}H{n * width:.1f}" for n in reversed(range(len(below)))
    )
    return f"M0 {frame.y(above[0]):.1f}{top} {bottom}Z"


class _Frame:
    """Where values fall in a plot 1000 units wide."""

    def __init__(
        self, x_low: float, x_high: float, y_low: float, y_high: float, height: int, log_x: bool = False
    ) -> None:
        self.x_low, self.x_high, self.y_low, self.y_high, self.height = x_low, x_high, y_low, y_high, height
        self.log_x = log_x

    def x(self, value: float) -> float:
        return 1000 * (value - self.x_low) / (self.x_high - self.x_low) if self.x_high > self.x_low else 500.0

    def y(self, value: float) -> float:
        return self.height * (1 - (value - self.y_low) / (self.y_high - self.y_low))


def _extent(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    low = min(0.0, low) if from_zero else low
    room = max(0.05 * (high - low), _LEAST_ROOM * abs(high)) or 1.0
    room = max(room, 1e-90)  # differences this small are rounding
    return (low if low >= 0 and low - room < 0 else low - room, high + room)


def _curve(number: int, series: Series, frame: _Frame, scatter: bool) -> Markup:
    at = [(frame.x(x), None if y is None else frame.y(y)) for x, y in series.points]
    line, gap = [], True
    for x, y in at:
        if y is not None:
            line.append(f"{'M' if gap else 'L'}{x:.1f} {y:.1f}")
        gap = y is None
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in at if y is not None)
    path = Markup('<path class="{}" d="{}"/>')
    curve = Markup("") if scatter else path.format("curve", "".join(line))
    points = (
        path.format("dots", dots) if scatter or (series.dots and len(at) <= _MOST_DOTS) or len(at) == 1 else Markup("")
    )
    classes = f"{series.style}{' faint' if series.faint else ''}{' scatter' if scatter else ''}"
    return Markup('<g class="{}" data-series="{}">{}{}</g>').format(classes, number, curve, points)


def _mark(frame: _Frame, x: float, name: str, style: str) -> Markup:
    path = Markup('<path class="{3}" d="M{0:.1f} 0V{1}"><title>{2}</title></path>')
    return path.format(frame.x(x), frame.height, printable(name), style)


def _mark_names(frame: _Frame, marks: Sequence[tuple[float, str]]) -> Markup:
    """One line each: names of marks that are close together would cover each other."""
    text = Markup('<text x="{:.2f}%" y="{}" text-anchor="{}">{}</text>')
    at = [(frame.x(x) / 10, 13 + 16 * n, name) for n, (x, name) in enumerate(marks)]
    names = join_markup(text.format(x, y, "end" if x > 50 else "start", printable(name)) for x, y, name in at)
    return Markup('<svg class="x" height="{}">{}</svg>').format(4 + 16 * len(marks), names)


def _figure(
    title: str,
    note: str,
    label: str,
    frame: _Frame,
    inner: Markup,
    data: str | None,
    keys: Markup,
    x_label: str,
    unit: str,
    above: Markup = Markup(""),  # noqa: B008
) -> Markup:
    chart = Markup(' data-chart="{}"').format(data) if data else Markup("")
    tools = Markup('<line class="cursor" y1="0" y2="{}"/>').format(frame.height)
    return Markup(
        '<figure{chart}><figcaption>{title}{note}</figcaption><div class="plot">{above}{y_axis}'
        '<div class="area"{focus}><svg height="{height}" viewBox="0 0 1000 {height}" preserveAspectRatio="none" '
        'role="img" aria-label="{label}">{grid}{inner}{tools}</svg></div>{x_axis}<div class="tip" hidden></div></div>'
        "{legend}</figure>"
    ).format(
        chart=chart,
        title=shown(title),
        note=caption_note(note),
        y_axis=_y_axis(frame, unit),
        height=frame.height,
        label=printable(label),
        grid=_grid(frame),
        inner=inner,
        tools=tools,
        legend=keys,
        above=above,
        x_axis=_x_axis(frame, x_label),
        focus=Markup(' tabindex="0"') if data else "",
    )


def _grid(frame: _Frame) -> Markup:
    lines = "".join(f"M0 {frame.y(t):.1f}H1000" for t in ticks(frame.y_low, frame.y_high))
    return Markup('<path class="grid" d="{}"/>').format(lines)


def _y_axis(frame: _Frame, unit: str) -> Markup:
    text = Markup('<text x="50" y="{:.1f}" text-anchor="end">{}</text>')
    marks = ticks(frame.y_low, frame.y_high)
    labels = join_markup(text.format(frame.y(t) + 4, f"{t:.6g}{unit}") for t in marks)
    return Markup('<svg height="{}" aria-hidden="true">{}</svg>').format(frame.height, labels)


def _x_axis(frame: _Frame, x_label: str) -> Markup:
    marks = ticks(frame.x_low, frame.x_high, 5)
    at = [(frame.x(t) / 10, f"{10**t:.2g}" if frame.log_x else f"{t:,.6g}") for t in marks]
    text = Markup('<text x="{:.2f}%" y="14" text-anchor="{}">{}</text>')
    labels = join_markup(text.format(x, text_anchor(x), t) for x, t in at)
    name = Markup('<text x="50%" y="29" text-anchor="middle">{}</text>').format(printable(x_label))
    return Markup('<svg class="x" height="32" aria-hidden="true">{}{}</svg>').format(labels, name)


def text_anchor(percent: float) -> str:
    """Keeps labels at the ends of an axis inside of it."""
    return "start" if percent < 2 else "end" if percent > 98 else "middle"


def caption_note(note: str) -> Markup:
    """A chart's remark beside its title; nothing for an empty one."""
    return Markup(' <span class="dim">{}</span>').format(shown(note)) if note else Markup("")


def legend(entries: Iterable[tuple[str, str, str]]) -> Markup:
    """A legend without switches: colour class, name, figure."""
    item = Markup(
        '<li class="{}"><span class="key"></span><span class="label">{}</span><span class="figure">{}</span></li>'
    )
    items = join_markup(item.format(style, shown(name), shown(figure)) for style, name, figure in entries)
    return Markup('<ul class="legend">{}</ul>').format(items) if items else Markup("")


def _switches(series: Sequence[Series]) -> Markup:
    if len(series) < 2:
        return Markup("")
    item = Markup(
        '<li class="{}"><button type="button" data-toggle="{}" aria-pressed="true"><span class="key"></span>'
        '<span class="label">{}</span></button></li>'
    )
    items = join_markup(item.format(s.style, i, shown(s.name)) for i, s in enumerate(series))
    return Markup('<ul class="legend" aria-label="Series">{}</ul>').format(items)


def _data(series: Sequence[Series], frame: _Frame, x_label: str, unit: str) -> str:
    points = [{"name": printable(s.name), "points": [[_short(x), _short(y)] for x, y in s.points]} for s in series]
    values = {
        "x": [frame.x_low, frame.x_high],
        "x_label": printable(x_label),
        "unit": unit,
        "series": points,
        "log_x": frame.log_x,
    }
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _short(value: float | None) -> float | int | None:
    """Six digits are enough to read, and a fraction of the bytes."""
    if value is None:
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _summary(title: str, series: Sequence[Series], unit: str) -> str:
    """What a screen reader says instead of the picture."""
    words = []
    for each in series:
        values = [y for _, y in each.points if y is not None]
        if values:
            words.append(
                f"{each.name} from {values[0]:.4g}{unit} to {values[-1]:.4g}{unit}, "
                f"lowest {min(values):.4g}{unit}, highest {max(values):.4g}{unit}"
            )
    return f"{title}: {'; '.join(words)}"
