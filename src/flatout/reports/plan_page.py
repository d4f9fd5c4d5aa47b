"""A plan as one self-contained page: the frontier as a plot, every option as a table. Names are escaped."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from flatout.reports.page import csp_hash, printable
from flatout.reports.plan_text import count_text, hours_text, interval_text, name_of
from flatout.units import format_bytes, format_usd

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;width:100%;font-size:13px}td,th{padding:.25rem .5rem;border-bottom:1px solid #d9dee4;
text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}.dim{color:#66707b}svg{max-width:100%;height:auto}
tr.best td{background:#eef6ee}
"""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 420, 70, 50


def plan_page(plan: Mapping[str, Any]) -> str:
    policy = f"default-src 'none'; style-src '{csp_hash(_STYLE)}'"
    best = [_sentence(word, plan["best"][word]) for word in ("cheapest", "fastest")]
    notes = "".join(f"<li>{escape(printable(note))}</li>" for note in (plan["data_basis"], *plan["notes"]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>plan of {escape(printable(plan['recipe']))}</title><style>{_STYLE}</style></head><body>"
        f"<h1>What to rent for {escape(printable(plan['recipe']))}</h1>{''.join(best)}"
        f"{_plot(plan)}{_table(plan)}<ul class='dim'>{notes}</ul></body></html>\n"
    )


def _sentence(word: str, option: Mapping[str, Any] | None) -> str:
    if option is None:
        return f"<p><b>{word}:</b> nothing that fits stays within the limit</p>"
    usd = "no price" if option["usd"] is None else interval_text(option["usd"], format_usd)
    return (
        f"<p><b>{word}:</b> {escape(name_of(option))}, {option['gpus']} x {escape(option['gpu'])}: "
        f"{interval_text(option['hours'], hours_text)}, {usd}; {escape(option['limit'])} limits; "
        f"{escape(option['basis'])}</p>"
    )


def _plot(plan: Mapping[str, Any]) -> str:
    """Hours against dollars, both logarithmic; bars are the intervals of the frontier."""
    options = [
        each for each in plan["options"] if each["fits"] and each["usd"] is not None and each["usd"]["value"] > 0
    ]
    if not options:
        return "<p class='dim'>no option has a price, so there is no frontier to draw</p>"
    named = set(plan["frontier"])
    across = _scale([each["hours"]["value"] for each in options], _LEFT, _WIDTH - 20)
    up = _scale([each["usd"]["value"] for each in options], _HEIGHT - _BOTTOM, 20)
    marks = []
    for each in sorted(options, key=lambda option: name_of(option) in named):
        x, y = across(each["hours"]["value"]), up(each["usd"]["value"])
        on = name_of(each) in named
        colour, radius = ("#b3261e", 5) if on else ("#9aa5b1", 3)
        title = f"{name_of(each)}: {hours_text(each['hours']['value'])}, {format_usd(each['usd']['value'])}"
        if on:
            low, high = across(each["hours"]["low"]), across(each["hours"]["high"])
            marks.append(f'<line x1="{low:.0f}" x2="{high:.0f}" y1="{y:.0f}" y2="{y:.0f}" stroke="{colour}"/>')
        marks.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{radius}" fill="{colour}"><title>{escape(title)}</title></circle>'
        )
    points = [(across(e["hours"]["value"]), up(e["usd"]["value"])) for e in options if name_of(e) in named]
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in sorted(points))
    axes = (
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 10}">hours (logarithmic)</text>'
        f'<text x="8" y="16">dollars (logarithmic)</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="hours against dollars" font-size="12">'
        f'<polyline points="{line}" fill="none" stroke="#b3261e" stroke-dasharray="4 3"/>{"".join(marks)}{axes}</svg>'
    )


def _scale(values: Sequence[float], start: float, end: float) -> Any:
    low, high = math.log(min(values)), math.log(max(values))
    span = high - low or 1.0
    return lambda value: start + (math.log(max(value, 1e-9)) - low) / span * (end - start)


def _table(plan: Mapping[str, Any]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("machine", "cards", "fits", "samples/s", "device", "limit", "hours", "cost", "basis", "changes")
    )
    return f"<table><tr>{head}</tr>{''.join(_row(each, plan) for each in plan['options'])}</table>"


def _row(option: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    changes = "; ".join(
        f"{each['key']}={each['value']}" + ("" if each["applied"] else " (advice)") for each in option["changes"]
    )
    fits = f"{format_bytes(option['peak_bytes'])}, batch to {option['largest_batch']}"
    fits = fits if option["fits"] else f"no: {fits}"
    cells = [
        (name_of(option), ""),
        (f"{option['gpus']} x {option['gpu']}", ""),
        (fits, ""),
        (interval_text(option["samples_per_second"], count_text), "n"),
        (interval_text(option["device_samples_per_second"], count_text), "n"),
        (option["limit"], ""),
        (interval_text(option["hours"], hours_text), "n"),
        ("no price" if option["usd"] is None else interval_text(option["usd"], format_usd), "n"),
        (option["basis"], ""),
        (changes, "dim"),
    ]
    row = "".join(f'<td class="{kind}">{escape(printable(str(text)))}</td>' for text, kind in cells)
    return f"<tr{' class=best' if name_of(option) in plan['frontier'] else ''}>{row}</tr>"
