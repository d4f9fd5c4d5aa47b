"""The table of a suite: one row for each experiment, whatever became of it, in Markdown, HTML and JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from markupsafe import Markup
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flatout.analysis.suite import SuiteRow
from flatout.reports.page import page, paragraph, section, table
from flatout.reports.values import write_value
from flatout.units import format_bytes, format_seconds

_WHY = (
    "The estimate is N/B x the time per batch: samples of an epoch over the batch size, times the median step without "
    "its wait for data. What the actual epoch took more (or less) is owed to:"
)
_REASONS = {
    "data_wait": "waiting for data",
    "warm_up": "the first step",
    "uneven_steps": "steps off the median",
    "checkpoint": "checkpoints",
    "other": "between steps",
}


_WRITERS: dict[str, Callable[[Any], str]] = {
    "time per batch": format_seconds,
    "estimated epoch": format_seconds,
    "predicted epoch": format_seconds,
    "actual epoch": format_seconds,
    "memory": format_bytes,
}


def cells(row: SuiteRow) -> dict[str, str]:
    """Text by column title: the name first, the comments last."""
    written = {title: _spread(values, _writer(title)) for title, values in row.values.items()}
    return {"name": row.name, **written, "comments": row.comments}


def _writer(title: str) -> Callable[[Any], str]:
    """Of a usual column, else of a key that the suite asked for, which says what it is."""
    return _WRITERS.get(title) or (lambda value: write_value(title, value))


def _spread(values: Sequence[Any], write: Callable[[Any], str]) -> str:
    """One value, or the median and its range."""
    known = [value for value in values if value is not None]
    if not known:
        return "n/a"
    words = list(dict.fromkeys(write(value) for value in known))
    if len(words) > 1 and all(isinstance(value, float) for value in known):
        return f"{write(median(known))} ({write(min(known))} to {write(max(known))})"
    return " / ".join(words)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _difference(row: SuiteRow) -> list[str]:
    """Name, difference, and every reason that is at least a hundredth of the estimate."""
    estimated, actual = row.mean(lambda epoch: epoch.estimate_seconds), row.mean(lambda epoch: epoch.actual_seconds)
    notable = [(name, seconds) for name, seconds in row.differences() if abs(seconds) >= 0.01 * estimated]
    parts = [f"{_signed(seconds)} {_REASONS.get(name, name)}" for name, seconds in notable]
    share = f"{100 * (actual - estimated) / estimated:+.0f} %"
    return [row.name, _signed(actual - estimated), share, ", ".join(parts) or "within 1 %"]


_DIFFERENCE_HEADER = ("name", "actual - estimate", "of the estimate", "because of")


def as_markdown(title: str, rows: Sequence[SuiteRow]) -> str:
    """The table, and why epochs took other than estimated."""
    lines = [f"# {title}", "", *_markdown_table(list(cells(rows[0])), [list(cells(row).values()) for row in rows])]
    explained = [_difference(row) for row in rows if row.epochs]
    if explained:
        lines += ["", _WHY, "", *_markdown_table(_DIFFERENCE_HEADER, explained)]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def as_html(title: str, rows: Sequence[SuiteRow]) -> str:
    """A whole document."""
    body = Markup("<header><h1>{}</h1></header><main>{}</main>").format(
        title, section("Experiments", *suite_sections(rows))
    )
    return page(title, body)


def suite_sections(rows: Sequence[SuiteRow]) -> list[Markup]:
    """The table, and why epochs took other than estimated."""
    explained = [_difference(row) for row in rows if row.epochs]
    why = [Markup("<h3>Estimate and actual</h3>"), paragraph(_WHY), table(_DIFFERENCE_HEADER, explained)]
    lines = [list(cells(row).values())[:-1] for row in rows]
    remark = Markup('<span class="{}">{}</span>')
    remarks = [
        remark.format("bad" if row.causes else "dim", row.comments) if row.comments else Markup("") for row in rows
    ]
    return [table([*cells(rows[0])][:-1], lines, remarks=remarks), *(why if explained else [])]


def as_json(title: str, rows: Sequence[SuiteRow]) -> dict[str, Any]:
    """Values of every repeat, not rounded."""
    return {
        "suite": title,
        "rows": [
            {
                "name": row.name,
                "values": row.values,
                "comments": row.comments,
                "epochs": [asdict(each) for each in row.epochs],
                "causes": row.causes,
            }
            for row in rows
        ],
    }


def as_terminal(rows: Sequence[SuiteRow], width: int) -> list[RenderableType]:
    """A table where it fits, else a paragraph for each experiment; then the differences."""
    lines = [cells(row) for row in rows]
    widest = [max(len(title), *(len(line[title]) for line in lines)) + 2 for title in lines[0]]
    shown = [_wide(rows)] if sum(widest) <= width else [_card(row) for row in rows]
    why = []
    for name, seconds, share, parts in (_difference(row) for row in rows if row.epochs):
        why.append(Text(name, style="bold").append(f"  {seconds} ({share}): {parts}", style="not bold"))
    return [*shown, Text(), Text(_WHY, style="dim"), *why] if why else list(shown)


def _wide(rows: Sequence[SuiteRow]) -> RenderableType:
    table = Table(box=None, header_style="dim")
    for title in cells(rows[0]):
        table.add_column(title, justify="left" if title in ("name", "comments") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, style="red" if row.causes else "") for cell in cells(row).values()))
    return table


def _card(row: SuiteRow) -> RenderableType:
    card = Text(row.name, style="bold red" if row.causes else "bold")
    card.append(f"  {row.comments}", style="not bold dim")
    for title, cell in cells(row).items():
        if title not in ("name", "comments"):
            card.append("\n  " if title in ("batch", "time per batch", "memory") else "  ")
            card.append(f"{title} ", style="not bold dim").append(cell, style="not bold")
    return card
