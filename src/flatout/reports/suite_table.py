"""The table of a suite: one row for each experiment, whatever became of it, in Markdown, HTML and JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from flatout.reports.page import page, paragraph, section, table
from flatout.reports.values import look_up, nested, write_value
from flatout.runs import Run
from flatout.runs.epochs import EpochEstimate
from flatout.units import format_bytes, format_seconds

_ESTIMATE = "estimated epoch"
_WHY = (
    "An estimate is N/B x the median step: samples of an epoch over the batch size, times the usual time of one step. "
    "The rows below add up to the difference."
)


@dataclass(frozen=True)
class Outcome:
    """One run of an experiment. Without `run` it never began; `cause` says why it did not end well."""

    name: str
    comment: str
    config: Mapping[str, Any]
    run: Run | None = None
    estimate: EpochEstimate | None = None
    cause: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """An experiment with all its repeats; cells by column title."""

    name: str
    cells: dict[str, str]
    values: dict[str, list[Any]]
    estimates: list[EpochEstimate] = field(default_factory=list)
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
    return Row(name, cells, values, [each.estimate for each in repeats if each.estimate], causes)


def _spread(values: Sequence[Any], write: Callable[[Any], str]) -> str:
    """One value, or the median and its range."""
    known = [value for value in values if value is not None]
    if not known:
        return "n/a"
    if all(isinstance(value, float) for value in known) and len(known) > 1:
        return f"{write(median(known))} ({write(min(known))} to {write(max(known))})"
    return " / ".join(dict.fromkeys(write(value) for value in known))


def _memory(outcome: Outcome) -> float | None:
    """Of the device; of a CPU, what the processes of the run held."""
    summary = outcome.run.summary if outcome.run else {}
    found = nested(summary, "device_use.memory_peak_bytes") or nested(summary, "host.rss_peak_bytes")
    return None if found is None else float(found)


def _setting(key: str) -> Callable[[Outcome], Any]:
    return lambda outcome: nested(outcome.config, key)


def _estimate(name: str) -> Callable[[Outcome], Any]:
    return lambda outcome: None if outcome.estimate is None else getattr(outcome.estimate, name)


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
    ("batch", _setting("data.batch_size"), _plain),
    ("workers", _setting("data.workers"), _plain),
    ("checkpointing", _setting("train.checkpointing"), _plain),
    ("DP", _parallel("dp"), _plain),
    ("DDP", _parallel("ddp"), _plain),
    ("time per batch", _estimate("batch_seconds"), format_seconds),
    (_ESTIMATE, _estimate("estimated_seconds"), format_seconds),
    ("actual epoch", _estimate("actual_seconds"), format_seconds),
    ("memory", _memory, format_bytes),
)


def reasons(row: Row) -> list[tuple[str, float]]:
    """Why an epoch took other than the estimate, largest first; means over the repeats."""
    names = list(row.estimates[0].reasons) if row.estimates else []
    means = [(name, sum(each.reasons[name] for each in row.estimates) / len(row.estimates)) for name in names]
    return sorted(means, key=lambda each: -abs(each[1]))


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _difference(row: Row) -> list[str]:
    """Name, difference, and every reason that is at least a hundredth of the estimate."""
    estimated = sum(each.estimated_seconds for each in row.estimates) / len(row.estimates)
    actual = sum(each.actual_seconds for each in row.estimates) / len(row.estimates)
    parts = [f"{_signed(value)} {name}" for name, value in reasons(row) if abs(value) >= 0.01 * estimated]
    share = f"{100 * (actual - estimated) / estimated:+.0f} %"
    return [row.name, _signed(actual - estimated), share, ", ".join(parts) or "within 1 %"]


_DIFFERENCE_HEADER = ("name", "actual - estimate", "of the estimate", "because of")


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    lines = [f"# {title}", "", *_markdown_table(list(rows[0].cells), [list(row.cells.values()) for row in rows])]
    explained = [_difference(row) for row in rows if row.estimates]
    if explained:
        lines += ["", _WHY, "", *_markdown_table(_DIFFERENCE_HEADER, explained)]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def as_html(title: str, rows: Sequence[Row]) -> str:
    explained = [_difference(row) for row in rows if row.estimates]
    body = Markup("<header><h1>{}</h1></header><main>{}{}</main>").format(
        title,
        section("Experiments", table(list(rows[0].cells), [list(row.cells.values()) for row in rows], title)),
        section("Estimate and actual", paragraph(_WHY), table(_DIFFERENCE_HEADER, explained)) if explained else "",
    )
    return page(title, body)


def as_json(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "suite": title,
        "rows": [
            {
                "name": row.name, "values": row.values, "comments": row.cells["comments"],
                "estimates": [asdict(each) for each in row.estimates], "causes": row.causes,
            }
            for row in rows
        ],
    }  # fmt: skip


def as_terminal(rows: Sequence[Row]) -> list[Table]:
    main = Table(box=None, header_style="dim")
    for title in rows[0].cells:
        main.add_column(title, justify="left" if title in ("name", "comments") else "right", no_wrap=title == "name")
    for row in rows:
        style = "red" if row.causes else ""
        main.add_row(*(Text(cell, style=style) for cell in row.cells.values()))
    why = Table(box=None, header_style="dim", title=_WHY, title_justify="left", title_style="dim")
    for title in _DIFFERENCE_HEADER:
        why.add_column(title)
    for row in rows:
        if row.estimates:
            why.add_row(*map(Text, _difference(row)))
    return [main, why] if why.row_count else [main]
