"""Rows of blocks on one axis, as inline SVG: ledgers of time, and lanes of work."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from flatout.reports.charts import caption_note, legend, text_anchor, ticks
from flatout.reports.page import join_markup, printable, shown


@dataclass(frozen=True)
class Block:
    """One stretch of a strip, in the units of its axis."""

    start: float
    length: float
    style: str
    title: str


def strips(
    title: str,
    rows: Sequence[tuple[str, Sequence[Block], str]],
    extent: tuple[float, float],
    unit: str = "",
    note: str = "",
    kind: str = "",
    keys: Iterable[tuple[str, str, str]] = (),
) -> Markup:
    """Rows of blocks on one axis: name, blocks, figure at the right. Serves ledgers and lanes alike."""
    if not rows:
        return Markup("")
    low, high = extent
    row = Markup('<span class="name" title="{0}">{0}</span>{1}<span class="dim">{2}</span>')
    body = join_markup(
        row.format(printable(name), _strip(name, blocks, low, high), figure) for name, blocks, figure in rows
    )
    at = [(100 * (t - low) / ((high - low) or 1), f"{t - low:g}{unit}") for t in ticks(low, high, 4)] if unit else []
    labels = join_markup(
        Markup('<text x="{:.2f}%" y="12" text-anchor="{}">{}</text>').format(x, text_anchor(x), t) for x, t in at
    )
    axis = Markup('<span></span><span class="axis"><svg aria-hidden="true">{}</svg></span><span></span>').format(labels)
    return Markup('<figure class="{}"><figcaption>{}{}</figcaption><div class="strips">{}{}</div>{}</figure>').format(
        kind, shown(title), caption_note(note), body, axis if at else "", legend(keys)
    )


def stacked(parts: dict[str, float], whole: float, write: Callable[[float], str]) -> list[Block]:
    """The parts of one whole, one after the other."""
    blocks, at = [], 0.0
    for name, value in parts.items():
        if value > 0:
            label = name.replace("_", " ")
            share = f", {100 * value / whole:.1f} %" if whole else ""
            blocks.append(Block(at, value, name, f"{label}: {write(value)}{share}"))
        at += max(0.0, value)
    return blocks


def _strip(name: str, blocks: Sequence[Block], low: float, high: float) -> Markup:
    scale = 1000 / ((high - low) or 1)
    rect = Markup('<rect class="{} block" x="{:.2f}" y="0" width="{:.2f}" height="20"><title>{}</title></rect>')
    rects = join_markup(
        rect.format(b.style, (b.start - low) * scale, max(0.4, b.length * scale), printable(b.title)) for b in blocks
    )
    words = "; ".join(b.title for b in blocks[:12])
    return Markup('<svg viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>').format(
        printable(f"{name}: {words}"), rects
    )
