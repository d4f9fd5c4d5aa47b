"""The table of a suite: one row for each experiment, whatever became of it, in Markdown, HTML and JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from markupsafe import Markup
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flatout.analysis.mean_epoch import MeanEpoch
from flatout.analysis.values import look_up, nested, write_value
from flatout.config.tasks import spec_of
from flatout.reports.page import page, paragraph, section, table
from flatout.runs import Run
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


@dataclass(frozen=True)
class Outcome:
    """One run of an experiment. Without `run` it never began; `cause` says why it did not end well."""

    name: str
    comment: str
    config: Mapping[str, Any]
    run: Run | None = None
    epoch: MeanEpoch | None = None
    cause: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """An experiment with all its repeats; cells by column title."""

    name: str
    cells: dict[str, str]
    values: dict[str, list[Any]]
    epochs: list[MeanEpoch] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)


def suite_rows(outcomes: Sequence[Outcome], columns: Sequence[str]) -> list[Row]:
    """In the order of the suite; the repeats of an experiment are one row."""
    names = list(dict.fromkeys(each.name for each in outcomes))
    return [_row(name, [each for each in outcomes if each.name == name], columns) for name in names]


def _row(name: str, repeats: Sequence[Outcome], columns: Sequence[str]) -> Row:
    values: dict[str, list[Any]] = {}
    cells = {"name": name}
    for title, read, write in (*_COLUMNS, *map(_chosen, columns)):
        values[title] = [read(each) for each in repeats]
        cells[title] = _spread(values[title], write)
    causes = list(dict.fromkeys(each.cause for each in repeats if each.cause))
    notes = dict.fromkeys(note for each in repeats for note in each.notes)
    cells["comments"] = "; ".join(part for part in (*causes, repeats[0].comment, *notes) if part)
    return Row(name, cells, values, [each.epoch for each in repeats if each.epoch], causes)


def _spread(values: Sequence[Any], write: Callable[[Any], str]) -> str:
    """One value, or the median and its range."""
    known = [value for value in values if value is not None]
    if not known:
        return "n/a"
    words = list(dict.fromkeys(write(value) for value in known))
    if len(words) > 1 and all(isinstance(value, float) for value in known):
        return f"{write(median(known))} ({write(min(known))} to {write(max(known))})"
    return " / ".join(words)


def _memory(outcome: Outcome) -> float | None:
    """Of the device; of a CPU, what the processes of the run held."""
    summary = outcome.run.summary if outcome.run else {}
    found = nested(summary, "device_use.memory_peak_bytes") or nested(summary, "host.rss_peak_bytes")
    return None if found is None else float(found)


def _setting(key: str) -> Callable[[Outcome], Any]:
    return lambda outcome: nested(outcome.config, key)


def _batch(outcome: Outcome) -> Any:
    if spec_of(nested(outcome.config, "task")).batch_unit == "tokens":
        return f"{nested(outcome.config, 'data.batch_tokens')} tokens"
    return nested(outcome.config, "data.batch_size")


def _epoch(name: str) -> Callable[[Outcome], Any]:
    return lambda outcome: None if outcome.epoch is None else getattr(outcome.epoch, name)


def _parallel(prefix: str) -> Callable[[Outcome], bool]:
    return lambda outcome: str(nested(outcome.config, "parallel.mode")) == prefix


def _chosen(key: str) -> tuple[str, Callable[[Outcome], Any], Callable[[Any], str]]:
    return (
        key,
        lambda outcome: nested(outcome.config, key) if outcome.run is None else look_up(outcome.run, key),
        lambda value: write_value(key, value),
    )


def _plain(value: Any) -> str:
    return write_value("", value)


_COLUMNS: tuple[tuple[str, Callable[[Outcome], Any], Callable[[Any], str]], ...] = (
    ("batch", _batch, _plain),
    ("workers", _setting("data.workers"), _plain),
    ("checkpointing", _setting("train.checkpointing"), _plain),
    ("DP", _parallel("dp"), _plain),
    ("DDP", _parallel("ddp"), _plain),
    ("time per batch", _epoch("batch_seconds"), format_seconds),
    ("estimated epoch", _epoch("estimate_seconds"), format_seconds),
    ("actual epoch", _epoch("actual_seconds"), format_seconds),
    ("memory", _memory, format_bytes),
)


def reasons(row: Row) -> list[tuple[str, float]]:
    """Why an epoch took other than the estimate, largest first; means over the repeats."""
    names = list(row.epochs[0].differences) if row.epochs else []
    means = [(name, sum(each.differences[name] for each in row.epochs) / len(row.epochs)) for name in names]
    return sorted(means, key=lambda each: -abs(each[1]))


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _difference(row: Row) -> list[str]:
    """Name, difference, and every reason that is at least a hundredth of the estimate."""
    estimated = sum(each.estimate_seconds for each in row.epochs) / len(row.epochs)
    actual = sum(each.actual_seconds for each in row.epochs) / len(row.epochs)
    notable = [(name, seconds) for name, seconds in reasons(row) if abs(seconds) >= 0.01 * estimated]
    parts = [f"{_signed(seconds)} {_REASONS.get(name, name)}" for name, seconds in notable]
    share = f"{100 * (actual - estimated) / estimated:+.0f} %"
    return [row.name, _signed(actual - estimated), share, ", ".join(parts) or "within 1 %"]


_DIFFERENCE_HEADER = ("name", "actual - estimate", "of the estimate", "because of")


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    lines = [f"# {title}", "", *_markdown_table(list(rows[0].cells), [list(row.cells.values()) for row in rows])]
    explained = [_difference(row) for row in rows if row.epochs]
    if explained:
        lines += ["", _WHY, "", *_markdown_table(_DIFFERENCE_HEADER, explained)]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def as_html(title: str, rows: Sequence[Row]) -> str:
    explained = [_difference(row) for row in rows if row.epochs]
    body = Markup("<header><h1>{}</h1></header><main>{}{}</main>").format(
        title,
        section("Experiments", table([*rows[0].cells][:-1], [_page_row(row) for row in rows])),
        section("Estimate and actual", paragraph(_WHY), table(_DIFFERENCE_HEADER, explained)) if explained else "",
    )
    return page(title, body)


def _page_row(row: Row) -> list[str | Markup]:
    """The comment under the name: a last column would be cut off on most screens."""
    name = Markup('{}<br><span class="{}">{}</span>').format(
        row.name, "bad" if row.causes else "dim", row.cells["comments"]
    )
    return [name, *list(row.cells.values())[1:-1]]


def as_json(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "suite": title,
        "rows": [
            {
                "name": row.name, "values": row.values, "comments": row.cells["comments"],
                "epochs": [asdict(each) for each in row.epochs], "causes": row.causes,
            }
            for row in rows
        ],
    }  # fmt: skip


def as_terminal(rows: Sequence[Row], width: int) -> list[RenderableType]:
    """A table where it fits, else a paragraph for each experiment; then the differences."""
    widest = [max(len(title), *(len(row.cells[title]) for row in rows)) + 2 for title in rows[0].cells]
    shown = [_wide(rows)] if sum(widest) <= width else [_card(row) for row in rows]
    why = []
    for name, seconds, share, parts in (_difference(row) for row in rows if row.epochs):
        why.append(Text(name, style="bold").append(f"  {seconds} ({share}): {parts}", style="not bold"))
    return [*shown, Text(), Text(_WHY, style="dim"), *why] if why else list(shown)


def _wide(rows: Sequence[Row]) -> RenderableType:
    table = Table(box=None, header_style="dim")
    for title in rows[0].cells:
        table.add_column(title, justify="left" if title in ("name", "comments") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, style="red" if row.causes else "") for cell in row.cells.values()))
    return table


def _card(row: Row) -> RenderableType:
    card = Text(row.name, style="bold red" if row.causes else "bold")
    card.append(f"  {row.cells['comments']}", style="not bold dim")
    for title, cell in row.cells.items():
        if title not in ("name", "comments"):
            card.append("\n  " if title in ("batch", "time per batch", "memory") else "  ")
            card.append(f"{title} ", style="not bold dim").append(cell, style="not bold")
    return card
