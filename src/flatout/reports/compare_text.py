"""A comparison in the terminal: what may not be compared, what differs, figures, where the time went."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatout.analysis.comparison import Comparison, Figure
from flatout.reports.values import write_value
from flatout.units import format_seconds, format_share

_POINTS = ("accuracy.top1", "accuracy.top5", "data_wait_share", "utilization_mean")
_EQUAL = ("1.00x", "+0.0 points", "-0.0 points")


def render_comparison(found: Comparison) -> RenderableType:
    """Caveats first, then differences, figures and the ledger."""
    pieces: list[RenderableType] = [Text(f"! {text}", style="bold yellow") for text in found.caveats]
    pieces += [Text(row.sentence, style="bold") for row in found.scaling]
    for title, rows in (("configuration", found.settings), ("machine", found.machines)):
        if rows:
            cells = [[key, *map(setting, values)] for key, values in rows]
            pieces += [Text(), _table(f"what differs: {title}", found.labels, cells)]
        elif title == "configuration":
            pieces += [Text(), Text("no key of the configuration differs", style="dim")]
    pieces += [Text(), _figures(found)]
    if found.parts:
        pieces += [Text(), _ledger(found)]
    return Group(*pieces)


def setting(value: Any) -> str:
    """A value of a configuration, as it is written there."""
    is_plain = value is None or isinstance(value, bool)
    return {None: "null", True: "true", False: "false"}[value] if is_plain else str(value)


def relation(figure: Figure, index: int) -> str:
    """How a run's figure stands to the first one's: a ratio, or points where the figure is a share."""
    first, value, ratio = figure.values[0], figure.values[index], figure.ratios[index]
    if first is None or value is None:
        return ""
    if figure.key in _POINTS:
        return f"{100 * (value - first):+.1f} points"
    return "" if ratio is None else f"{ratio:.2f}x"


def judgement(figure: Figure, index: int) -> str:
    """better or worse than the first run, where that can be said and is more than rounding."""
    first, value = figure.values[0], figure.values[index]
    if figure.better is None or first is None or value is None or relation(figure, index) in _EQUAL:
        return ""
    return "better" if (value > first) == (figure.better == "higher") else "worse"


def _table(title: str, labels: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="dim")
    for name in ("", *labels):
        table.add_column(Text(name), justify="right" if name else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _figures(found: Comparison) -> Table:
    table = Table(box=None, header_style="dim", title="figures", title_justify="left", title_style="dim")
    table.add_column("")
    table.add_column(Text(found.labels[0]), justify="right")
    for label in found.labels[1:]:
        table.add_column(Text(label), justify="right")
        table.add_column("")
    for figure in found.figures:
        cells = [Text(figure.title), _value(figure, 0)]
        for index in range(1, len(found.labels)):
            verdict = judgement(figure, index)
            words = f"{relation(figure, index)} {verdict}".strip()
            cells += [_value(figure, index), Text(words, style={"better": "green", "worse": "red"}.get(verdict, "dim"))]
        table.add_row(*cells)
    return table


def _value(figure: Figure, index: int) -> Text:
    return Text(write_value(figure.key, figure.values[index]), style="bold" if figure.best == index else "")


def _ledger(found: Comparison) -> Table:
    """Seconds, share and seconds per step of every part; per step only where two runs leave room for it."""
    shown = 3 if len(found.labels) == 2 else 2
    title = f"where the time went: {', '.join(('in all', 'share', 'per step')[:shown])}"
    table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="dim")
    table.add_column("")
    for label in found.labels:
        table.add_column(Text(label), justify="right", no_wrap=True)
        for _ in range(shown - 1):
            table.add_column("", justify="right", no_wrap=True)
    for part, row in found.parts.items():
        if any(row):
            cells = [cell for i, seconds in enumerate(row) for cell in ledger_cells(found, seconds, i)[:shown]]
            table.add_row(part.replace("_", " "), *cells)
    return table


def ledger_cells(found: Comparison, seconds: float | None, index: int) -> tuple[str, str, str]:
    """In all, share of the wall clock, per step."""
    steps = found.steps[index]
    each = seconds / steps if seconds is not None and steps else None
    return format_seconds(seconds), format_share(seconds, found.wall_seconds[index]), format_seconds(each)
