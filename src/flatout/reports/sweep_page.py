"""What a sweep came to: on the terminal, and as one page that opens offline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flatout.config.tasks import Metric
from flatout.reports.charts import Series, line_chart
from flatout.reports.page import note, page, paragraph, preformatted, section, table, tiles
from flatout.units import format_seconds, format_usd


@dataclass(frozen=True)
class SweepRow:
    """A configuration: its value at the end of each rung, None where it did not get there."""

    name: str
    values: list[float | None]
    cause: str | None
    kept: bool


@dataclass(frozen=True)
class SweepSummary:
    """Rows are best first. Epochs are counted over all configurations: those trained, and those of all to the end."""

    name: str
    folder: Path
    metric: Metric
    rungs: list[int]
    rows: list[SweepRow]
    winner: str | None
    recipe: Path | None
    winner_run: Path | None
    complete: bool
    interrupted: bool
    budget: str | None
    spent_seconds: float
    spent_usd: float | None
    epochs_trained: int
    epochs_whole: int

    def to_dict(self) -> dict[str, Any]:
        values = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self).items()}
        return {**values, "metric": self.metric.name, "rows": [vars(row) for row in self.rows]}

    def sentences(self) -> list[str]:
        """What was found, what it took, how to go on."""
        said = []
        if self.winner is not None and self.rungs:
            said.append(f"{'winner' if self.complete else 'best so far'}: {self.winner}")
        said.append(
            f"it took {format_seconds(self.spent_seconds)}{_money(self.spent_usd)}: {self.epochs_trained} epochs of "
            f"training; all {len(self.rows)} configurations to the end have {self.epochs_whole}"
        )
        if self.budget is not None:
            said.append(f"the budget of {self.budget} is spent; the same command with a larger --budget goes on")
        if self.recipe is not None:
            said.append(f"to train it: flatout train {self.recipe}")
            said.append(f"to go on with its run: flatout train {self.recipe} --run {self.winner_run}")
        return said


def sweep_lines(found: SweepSummary) -> list[str]:
    """For the terminal."""
    rows = [f"{row.name}: {', '.join(_cells(row, found.metric))}" for row in found.rows]
    return [*rows, "", *found.sentences(), f"{found.folder}/sweep.html"]


def sweep_page(found: SweepSummary, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A whole document; `curves` are the metric over epochs, by configuration."""
    metric = found.metric
    header = ["configuration", *(f"{metric.title} after epoch {epochs}" for epochs in found.rungs), "then"]
    rows = [[row.name, *_values(row, metric), row.cause or ("kept" if row.kept else "dropped")] for row in found.rows]
    series = [Series(name, [(x, metric.factor * y) for x, y in points], dots=True) for name, points in curves.items()]
    unit = metric.unit if metric.factor == 100 else ""
    figures = [
        ("best", found.winner or "n/a", "" if found.complete else "so far"),
        ("time", format_seconds(found.spent_seconds), format_usd(found.spent_usd)),
        ("epochs trained", str(found.epochs_trained), f"of {found.epochs_whole}, all to the end"),
    ]
    unfinished = note(f"the budget of {found.budget} is spent") if found.budget else Markup("")
    body = Markup("<header><h1>{}</h1></header><main>{}{}{}{}{}</main>").format(
        found.name,
        unfinished,
        section("Result", tiles(figures), preformatted("\n".join(found.sentences()))),
        section("Rungs", table(header, rows)),
        section("Curves", line_chart(metric.title, series, "epoch", unit)),
        section("Where", paragraph(str(found.folder))),
    )
    return page(f"flatout: {found.name}", body)


def _values(row: SweepRow, metric: Metric) -> list[str]:
    return ["n/a" if value is None else metric.write(value) for value in row.values]


def _cells(row: SweepRow, metric: Metric) -> list[str]:
    reached = [metric.write(value) for value in row.values if value is not None]
    return [*reached, *([row.cause] if row.cause else [])]


def _money(usd: float | None) -> str:
    return "" if usd is None else f" ({format_usd(usd)})"
