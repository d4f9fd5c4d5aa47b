"""A comparison as one HTML page that opens offline."""

from collections.abc import Sequence

from markupsafe import Markup

from flatout.analysis.comparability import Side
from flatout.analysis.comparison import Comparison, Figure
from flatout.reports.charts import Series, line_chart
from flatout.reports.compare_text import judgement, ledger_cells, relation, setting
from flatout.reports.page import join_markup, note, page, paragraph, section, table
from flatout.reports.strips import stacked, strips
from flatout.reports.values import write_value
from flatout.units import format_seconds

_CURVES = (
    ("top1", "top-1 accuracy", 100.0, " %"),
    ("bleu", "BLEU", 1.0, ""),
    ("val_loss", "validation loss", 1.0, ""),
    ("train_loss", "training loss", 1.0, ""),
)


def comparison_page(found: Comparison, sides: Sequence[Side]) -> str:
    """A whole document; `sides` are the runs of `found`, for their curves."""
    title = comparison_title(found)
    body = Markup("<header><h1>{}</h1></header><main>{}</main>").format(title, comparison_body(found, sides))
    return page(f"flatout: {title}", body)


def comparison_title(found: Comparison) -> str:
    return " against ".join(found.labels) if len(found.labels) == 2 else f"{len(found.labels)} runs compared"


def comparison_body(found: Comparison, sides: Sequence[Side]) -> Markup:
    """All sections, differences first."""
    directories = [(label, str(path)) for label, path in zip(found.labels, found.directories, strict=True)]
    return join_markup(
        [
            join_markup(note(text, "bad" if text.startswith("NOT") else "warn") for text in found.caveats),
            join_markup(note(row.sentence, "good" if "MORE" not in row.sentence else "warn") for row in found.scaling),
            section("What differs", *_differences(found)),
            section("Figures", _figures(found)),
            section("Where the time went", *_ledger(found)),
            section("Curves", *_curves(found, sides)),
            section("Runs", table(("run", "directory"), directories)),
        ]
    )


def _differences(found: Comparison) -> list[Markup]:
    pieces = []
    for caption, rows in (("configuration", found.settings), ("machine", found.machines)):
        cells = [(key, *map(setting, values)) for key, values in rows]
        pieces.append(table((caption, *found.labels), cells))
    if not found.settings:
        pieces.insert(0, paragraph("No key of the configuration differs."))
    return pieces


def _figures(found: Comparison) -> Markup:
    header = ["figure", found.labels[0]]
    for label in found.labels[1:]:
        header += [label, f"{label} against {found.labels[0]}"]
    return table(header, [_row(found, figure) for figure in found.figures])


def _row(found: Comparison, figure: Figure) -> list[str | Markup]:
    cells: list[str | Markup] = [figure.title, write_value(figure.key, figure.values[0])]
    for index in range(1, len(found.labels)):
        verdict = judgement(figure, index)
        kind = {"better": "good", "worse": "bad"}.get(verdict, "")
        words = Markup('<span class="pill {}">{}</span>').format(kind, verdict) if verdict else Markup("")
        stands = Markup("{} {}").format(relation(figure, index), words)
        cells += [write_value(figure.key, figure.values[index]), stands]
    return cells


def _ledger(found: Comparison) -> list[Markup]:
    columns = [{part: row[i] or 0.0 for part, row in found.parts.items()} for i in range(len(found.labels))]
    walls = [wall or 0.0 for wall in found.wall_seconds]
    bars = [
        (label, stacked(parts, wall, format_seconds), format_seconds(wall))
        for label, parts, wall in zip(found.labels, columns, walls, strict=True)
        if wall
    ]
    keys = [(part, part.replace("_", " "), "") for part, row in found.parts.items() if any(row)]
    whole = strips("The whole run", bars, (0.0, max(walls, default=0.0)), " s", kind="ledger", keys=keys)
    rows = [
        [part.replace("_", " "), *(cell for i, seconds in enumerate(row) for cell in ledger_cells(found, seconds, i))]
        for part, row in found.parts.items()
        if any(row)
    ]
    header = ["part", *(title for label in found.labels for title in (label, "share", "per step"))]
    return [whole, _epoch_bars(found), table(header, rows)]


def _epoch_bars(found: Comparison) -> Markup:
    columns = [{part: row[i] or 0.0 for part, row in found.epoch_parts.items()} for i in range(len(found.labels))]
    lengths = [sum(parts.values()) for parts in columns]
    bars = [
        (label, stacked(parts, length, format_seconds), format_seconds(length))
        for label, parts, length in zip(found.labels, columns, lengths, strict=True)
        if length
    ]
    return (
        strips("One epoch (mean)", bars, (0.0, max(lengths, default=0.0)), " s", kind="ledger") if bars else Markup("")
    )


def _curves(found: Comparison, sides: Sequence[Side]) -> list[Markup]:
    charts = []
    for key, title, factor, unit in _CURVES:
        series = []
        for label, side in zip(found.labels, sides, strict=bool(sides)):
            points = [(float(row["epoch"]) + 1, factor * float(row[key])) for row in side.run.epochs if row.get(key)]
            if points:
                series.append(Series(label, points, dots=True))
        if series:
            charts.append(line_chart(title, series, "epoch", unit))
    return [Markup('<div class="pair">{}</div>').format(join_markup(charts))] if charts else []
