"""The result of an audit for people: on the terminal, and as one self-contained page. Names are untrusted: they
are escaped in the page and shown without their control characters everywhere."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from flatout.reports.page import join_markup, note, page, pairs, paragraph, pill, printable, section, shown, table
from flatout.reports.values import grid
from flatout.units import format_bytes, format_seconds, format_share

_COLOURS = {"problem": "bold red", "warning": "yellow", "note": "cyan"}
_KINDS = {"problem": "bad", "warning": "warn", "note": "good"}  # of a box in page.css
_TERMINAL_EXAMPLES = 3
_PAGE_CLASSES = 300


def audit_text(result: dict[str, Any]) -> RenderableType:
    """Findings first, then what the dataset consists of."""
    parts: list[RenderableType] = [_headline(result), Text()]
    for finding in result["findings"]:
        parts += _finding(finding)
    parts += [grid((name, Text(value)) for name, value in figures(result))]
    if result.get("html"):
        parts += [Text(f"\npage: {result['html']}")]
    return Group(*parts)


def _headline(result: dict[str, Any]) -> Text:
    line = Text(f"{printable(result['path'])}: ", style="bold")
    counts = [(result[f"{severity}s"], severity) for severity in _COLOURS]
    for count, severity in counts:
        if count:
            line.append(f"{count} {severity}{'s' if count > 1 else ''}  ", style=_COLOURS[severity])
    if not result["problems"]:
        line.append("no problems", style="bold green")
    return line


def _finding(finding: dict[str, Any]) -> list[RenderableType]:
    head = Text(f"{finding['severity']:8}", style=_COLOURS[finding["severity"]])
    head.append(f" {finding['count']:>7,}  ", style="default")
    head.append(f"[{finding['id']}] ", style="dim")
    head.append(finding["what"], style="default")
    shown = finding["examples"][:_TERMINAL_EXAMPLES]
    lines = [Text(" " * 18 + _example(example), style="dim", overflow="ellipsis", no_wrap=True) for example in shown]
    return [head, *lines, Padding(Text(finding["do"]), (0, 0, 0, 18)), Text()]


def _example(example: dict[str, Any]) -> str:
    names = " = ".join(printable(name) for name in example["names"])
    return f"{names}: {printable(example['detail'])}" if example["detail"] else names


def figures(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What the dataset consists of, one line each."""
    size, rows = result["bytes"], []
    for name, split in result["splits"].items():
        per_class, text = split["per_class"], f"{split['samples']:,} samples, {split['classes']} classes"
        if per_class:
            text += f", {per_class['min']} to {per_class['max']} in a class (median {per_class['median']:g})"
        rows.append((name, text))
    total, mean, low, high = (format_bytes(size[name]) for name in ("total", "mean", "min", "max"))
    rows.append(("bytes", f"{total}, mean {mean}, {low} to {high}"))
    rows.append(("size", _size(result["sizes"])))
    decoded = result["decoded"]
    for name, key in (("modes", "modes"), ("formats", "formats")):
        rows.append((name, ", ".join(f"{each} {format_share(n, decoded)}" for each, n in result[key].items()) or "n/a"))
    rows.append(("time", _time(result)))
    return rows


def _size(sizes: dict[str, Any] | None) -> str:
    if sizes is None:
        return "n/a (nothing could be decoded)"
    width, height, common = sizes["width"], sizes["height"], sizes["most_common"]
    return (
        f"width {width['min']} to {width['max']} (median {width['median']:g}), "
        f"height {height['min']} to {height['max']} (median {height['median']:g}); "
        f"{format_share(common['share'], 1)} are {common['width']} x {common['height']}"
    )


def _time(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    looked = f"looked at {result['looked_at']:,} of {result['samples']:,} samples in {format_seconds(seconds['wall'])}"
    rate = "n/a" if seconds["images_per_second"] is None else f"{seconds['images_per_second']:.0f} images/s"
    per_image = ", ".join(f"{each} {format_seconds(seconds[each]['per_image'])}" for each in ("read", "decode"))
    return f"{looked} ({rate} on {seconds['threads']} threads; per image: {per_image})"


def audit_html(result: dict[str, Any]) -> str:
    """`result` as from an audit, with `thumbnails` (name -> data URI)."""
    counts = "{problems} problems, {warnings} warnings, {notes} notes.".format(**result)
    if result["looked_at"] < result["samples"]:
        counts += f" Only {result['looked_at']} of {result['samples']} samples were looked at: more may be wrong."
    found = [_page_finding(finding, result["thumbnails"]) for finding in result["findings"]]
    body = Markup("<header><h1>Audit of <code>{}</code></h1>{}</header><main>{}{}{}</main>").format(
        shown(result["path"]),
        paragraph(counts, "lead"),
        section("What was found", *(found or [paragraph("Nothing to report.")])),
        section("What it consists of", pairs(figures(result))),
        section("Classes", *_classes(result)),
    )
    return page(f"Audit of {result['path']}", body, scripted=False)


def _page_finding(finding: dict[str, Any], thumbnails: Mapping[str, str]) -> Markup:
    examples = [_page_example(example, thumbnails) for example in finding["examples"]]
    text = Markup("<strong>{:,} {}</strong> {}").format(
        finding["count"], shown(finding["what"]), pill(f"{finding['severity']} · {finding['id']}")
    )
    items = Markup("<ul>{}</ul>").format(join_markup(examples)) if examples else Markup("")
    return join_markup([note(text, _KINDS[finding["severity"]]), paragraph(finding["do"]), items])


def _page_example(example: dict[str, Any], thumbnails: Mapping[str, str]) -> Markup:
    code, figure = (
        Markup("<code>{}</code>"),
        Markup('<figure><img src="{}" alt=""><figcaption>{}</figcaption></figure>'),
    )
    names = Markup(" = ").join(code.format(shown(name)) for name in example["names"])
    pictures = [figure.format(thumbnails[name], shown(name)) for name in example["names"] if name in thumbnails]
    detail = Markup(' <span class="dim">{}</span>').format(shown(example["detail"])) if example["detail"] else ""
    shelf = Markup('<div class="pictures">{}</div>').format(join_markup(pictures)) if pictures else ""
    return Markup("<li>{}{}{}</li>").format(names, detail, shelf)


def _classes(result: dict[str, Any]) -> list[Markup]:
    """Each class with its count in every split, smallest training class first."""
    splits = result["splits"]
    counts = [split["class_counts"] for split in splits.values()]
    rows = sorted(((name, [each[name] for each in counts]) for name in counts[0]), key=lambda row: row[1])
    largest = max((number for each in counts for number in each.values()), default=1) or 1
    meter = Markup('<meter max="{}" value="{}"></meter>')
    cells = [
        [name, *(f"{count:,}" for count in numbers), meter.format(largest, numbers[0])]
        for name, numbers in rows[:_PAGE_CLASSES]
    ]
    left_out = f"The {_PAGE_CLASSES} smallest of {result['classes']}; flatout data audit --json has all of them."
    return [
        paragraph(left_out, "dim") if result["classes"] > _PAGE_CLASSES else Markup(""),
        table(["class", *splits, ""], cells),
    ]
