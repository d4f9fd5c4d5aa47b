"""How good a trained model is, for the terminal and as one page: figures, classes, confusions, pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatout.config.tasks import metric_named
from flatout.reports.page import join_markup, note, page, pairs, paragraph, printable, section, shown, table, tiles
from flatout.reports.values import grid
from flatout.units import format_seconds

_TERMINAL_CLASSES, _TERMINAL_ROWS = 10, 5
_PAGE_CLASSES, _MATRIX_CLASSES = 300, 30


def evaluation_text(result: Mapping[str, Any]) -> RenderableType:
    """Figures first, then the weakest classes, what is taken for what, and the worst samples."""
    parts: list[RenderableType] = [grid((name, Text(value)) for name, value in figures(result))]
    if "classes" in result:
        weakest = [_class_row(each) for each in _weakest_first(result["classes"])[:_TERMINAL_CLASSES]]
        parts += [Text(), _rich("weakest classes", ("class", "samples", "precision", "recall", "F1"), weakest)]
        taken = [(each["right"], each["predicted"], str(each["samples"])) for each in result["confusions"]]
        if taken:
            parts += [Text(), _rich("taken for each other", ("class", "predicted", "samples"), taken[:_TERMINAL_ROWS])]
        worst = [_worst_row(each) for each in result["worst"][:_TERMINAL_ROWS]]
        parts += [Text(), _rich("worst samples", ("sample", "class", "got", "predicted", "with"), worst)]
    for each in result["left_out"][:_TERMINAL_ROWS]:
        parts.append(Text(f"left out: {printable(each['name'])}: {printable(each['reason'])}", style="yellow"))
    if result.get("page"):
        parts.append(Text(f"\npage: {result['page']}"))
    return Group(*parts)


def figures(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of what matters most."""
    rows = [(metric_named(name).title, metric_named(name).write(value)) for name, value in result["metrics"].items()]
    for looks, values in result.get("several_looks", {}).items():
        rows += [
            (f"{metric_named(name).title}, {looks}", metric_named(name).write(value)) for name, value in values.items()
        ]
    if "calibration" in result:
        rows.append(("calibration error", _percent(result["calibration"]["ece"])))
    rows.append(("samples", f"{result['samples']:,} of {printable(result['data'])}" + _view(result)))
    if result["left_out"]:
        rows.append(("left out", f"{len(result['left_out']):,} that cannot be decoded"))
    step = "" if result["step"] is None else f", step {result['step']:,}"
    averaged = ", averaged weights" if result["averaged_weights"] else ""
    rows.append(("weights", f"{printable(Path(result['checkpoint']).name)}{step}{averaged}"))
    if result["as_training_said"] is not None:
        rows.append(("training said", _agreement(result)))
    speed = result["samples_per_second"]
    ranks = f" on {result['ranks']} ranks" if result["ranks"] > 1 else ""
    rows.append(("time", f"{format_seconds(result['seconds'])} ({speed:,.0f} samples/s{ranks})" if speed else "n/a"))
    return rows


def _agreement(result: Mapping[str, Any]) -> str:
    said = result["training_said"]
    if result["as_training_said"]:
        return "the same, to the last digit"
    return ", ".join(f"{metric_named(name).title} {metric_named(name).write(value)}" for name, value in said.items())


def _view(result: Mapping[str, Any]) -> str:
    return "" if result["view"] is None else f", view {result['view']}"


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def _weakest_first(classes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((each for each in classes if each["samples"]), key=lambda each: (each["f1"] or 0.0, each["class"]))


def _class_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return each["class"], f"{each['samples']:,}", *(_percent(each[name]) for name in ("precision", "recall", "f1"))


def _worst_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    got, instead = _percent(each["probability"]), _percent(each["predicted_probability"])
    return each["name"], each["class"], got, each["predicted"], instead


def _rich(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in header:
        drawn.add_column(name, justify="left" if name in ("class", "predicted", "sample") else "right")
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    return drawn


def evaluation_html(result: Mapping[str, Any]) -> str:
    """`result` as `flatout evaluate --json` has it."""
    name = Path(result["run"]).name
    body = Markup("<header><h1>Evaluation of <code>{}</code></h1></header><main>{}{}{}{}{}{}</main>").format(
        shown(name),
        section("Figures", _warning(result), tiles(_tiles(result)), pairs(figures(result))),
        section("Worst samples", *_pictures(result)),
        section("Classes", *_classes(result)),
        section("What is taken for what", *_confusions(result)),
        section("Calibration", *_bins(result)),
        section("Left out", _left_out(result)),
    )
    return page(f"Evaluation of {name}", body, scripted=False)


def _warning(result: Mapping[str, Any]) -> Markup:
    if result["as_training_said"] is not False:
        return Markup("")
    return note(
        f"Training's own validation of these weights said {_agreement(result)}: the data, the device or the "
        "machine is another."
    )


def _tiles(result: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(metric_named(k).title, metric_named(k).write(v), "") for k, v in result["metrics"].items()]


def _pictures(result: Mapping[str, Any]) -> list[Markup]:
    if not result.get("worst"):
        return []
    figure = Markup("<figure>{}<figcaption><strong>{}</strong> {}<br>taken for {} {}<br>{}</figcaption></figure>")
    image = Markup('<img src="{}" alt="">')
    drawn = [
        figure.format(
            image.format(each["thumbnail"]) if each["thumbnail"] else "",
            shown(each["class"]),
            _percent(each["probability"]),
            shown(each["predicted"]),
            _percent(each["predicted_probability"]),
            shown(each["name"]),
        )
        for each in result["worst"]
    ]
    told = "Those whose own class got the least probability: often the label is wrong, not the model."
    return [paragraph(told, "dim"), Markup('<div class="pictures">{}</div>').format(join_markup(drawn))]


def _classes(result: Mapping[str, Any]) -> list[Markup]:
    if "classes" not in result:
        return []
    rows = _weakest_first(result["classes"])
    left = f"The {_PAGE_CLASSES} weakest of {len(rows)}; flatout evaluate --json has all of them."
    meter = Markup('<meter max="1" value="{:.4f}"></meter>')
    cells = [[*_class_row(each), meter.format(each["f1"] or 0.0)] for each in rows[:_PAGE_CLASSES]]
    return [
        paragraph(left, "dim") if len(rows) > _PAGE_CLASSES else Markup(""),
        table(["class", "samples", "precision", "recall", "F1", ""], cells),
    ]


def _confusions(result: Mapping[str, Any]) -> list[Markup]:
    if "classes" not in result:
        return []
    names = [each["class"] for each in result["classes"]]
    taken = [[each["right"], each["predicted"], f"{each['samples']:,}"] for each in result["confusions"]]
    pieces = [table(["class", "predicted", "samples"], taken)] if taken else [paragraph("Nothing was mistaken.")]
    if len(names) <= _MATRIX_CLASSES:
        lines = [[name, *(f"{n:,}" for n in row)] for name, row in zip(names, result["confusion_matrix"], strict=True)]
        pieces.append(table(["class \\ predicted", *names], lines, "Rows are classes, columns what was predicted"))
    return pieces


def _bins(result: Mapping[str, Any]) -> list[Markup]:
    if "calibration" not in result:
        return []
    meter = Markup('<meter max="1" value="{:.4f}"></meter>')
    rows = [
        [
            f"{each['up_to']:.2f}",
            f"{each['samples']:,}",
            _percent(each["confidence"]),
            _percent(each["right"]),
            meter.format(each["right"]),
        ]
        for each in result["calibration"]["bins"]
    ]
    told = f"Expected calibration error {_percent(result['calibration']['ece'])}: the mean distance between how sure "
    told += "the model is and how often it is right."
    return [paragraph(told), table(["confidence up to", "samples", "mean confidence", "right", ""], rows)]


def _left_out(result: Mapping[str, Any]) -> Markup:
    return table(["sample", "reason"], [[each["name"], each["reason"]] for each in result["left_out"][:_PAGE_CLASSES]])
