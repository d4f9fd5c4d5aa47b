"""The shell of every page flatout writes: one file that opens offline, in light and dark, on a phone, without a mouse.

Content is `Markup`: whatever else is put into it is escaped. Nothing but the page's own style and script may run or
load (content security policy), so a name made to attack stays text even where escaping were forgotten.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

_PAGE = Markup("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src '{style_hash}'; \
{script_source}base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
{script}</body>
</html>
""")


def page(title: str, body: Markup, scripted: bool = True) -> str:
    """A whole document; `body` holds <header>, <main> and <footer>. `scripted`: with page.js, which charts use."""
    # files of this package: not escaped
    style, script = (Markup((Path(__file__).parent / name).read_text("utf-8")) for name in ("page.css", "page.js"))  # noqa: S704
    document = _PAGE.format(
        title=printable(title),
        body=body,
        style=style,
        style_hash=csp_hash(style),
        script=Markup("<script>{}</script>\n").format(script) if scripted else "",
        script_source=Markup("script-src '{}'; ").format(csp_hash(script)) if scripted else "",
    )
    return str(document)


def csp_hash(content: str) -> str:
    """What lets this one style sheet or script through the content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


def printable(text: str) -> str:
    """A name as it may be shown: what is not printable as an escape, bytes that are no UTF-8 too."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: Any) -> Markup:
    """Any value as safe text; Markup as it is, nothing as n/a."""
    if isinstance(value, Markup):
        return value
    return escape("n/a" if value is None else printable(str(value)))


def join_markup(pieces: Iterable[Markup]) -> Markup:
    """One piece below the other."""
    return Markup("\n").join(pieces)


def section(title: str, *content: Markup, anchor: str = "") -> Markup:
    """A card with a heading; without content nothing at all."""
    filled = [each for each in content if each]
    if not filled:
        return Markup("")
    name = anchor or "".join(c if c.isalnum() else "-" for c in title.lower())
    body = Markup('<section id="{}" aria-labelledby="{}-h">\n<h2 id="{}-h">{}</h2>\n{}\n</section>')
    return body.format(name, name, name, shown(title), join_markup(filled))


def paragraph(value: Any, kind: str = "") -> Markup:
    """`kind` is a class of page.css: dim, lead."""
    return Markup('<p class="{}">{}</p>').format(kind, shown(value))


def note(value: Any, kind: str = "warn") -> Markup:
    """A box that stands out: good, warn or bad."""
    return Markup('<div class="note {}" role="note"><p>{}</p></div>').format(kind, shown(value))


def pill(text: str, kind: str = "") -> Markup:
    """A short word in a box; `kind` is good, warn or bad."""
    return Markup('<span class="pill {}">{}</span>').format(kind, shown(text))


def tiles(rows: Iterable[tuple[str, Any, Any]]) -> Markup:
    """The few figures that matter most: name, value, a small remark (or an empty string)."""
    tile = Markup('<div><dt>{}</dt><dd><span class="value">{}</span><span class="small">{}</span></dd></div>')
    return Markup('<dl class="tiles">{}</dl>').format(
        join_markup(tile.format(shown(name), shown(value), shown(small)) for name, value, small in rows)
    )


def pairs(rows: Iterable[tuple[Any, Any]]) -> Markup:
    """Questions and their answers, or names and their values."""
    pair = Markup("<dt>{}</dt><dd>{}</dd>")
    return Markup('<dl class="answers">{}</dl>').format(join_markup(pair.format(shown(a), shown(b)) for a, b in rows))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    caption: str = "",
    total: bool = False,
    remarks: Sequence[Markup] = (),
) -> Markup:
    """Cells may be Markup; columns of figures stand to the right. `total`: the last row. `remarks`: a line below each
    row, over its whole width; an empty one is left out."""
    lines = [[shown(cell) for cell in row] for row in rows]
    if not lines:
        return Markup("")
    kinds = [_kind([line[i] for line in lines]) for i in range(len(header))]
    head = join_markup(_COLUMN.format(kind, shown(name)) for name, kind in zip(header, kinds, strict=True))
    body = join_markup(
        _row(line, kinds, total and n == len(lines) - 1) + _remark(remarks[n : n + 1], len(header))
        for n, line in enumerate(lines)
    )
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table>{}<thead><tr>{}</tr></thead>\n'
        "<tbody>\n{}\n</tbody></table></div>"
    ).format(
        caption or ", ".join(header), Markup("<caption>{}</caption>").format(caption) if caption else "", head, body
    )


_COLUMN = Markup('<th scope="col" class="{}">{}</th>')
_FIRST = Markup('<th scope="row" class="{}">{}</th>')
_CELL = Markup('<td class="{}">{}</td>')


_REMARK = Markup('<tr class="remark"><td colspan="{}">{}</td></tr>')
_FIGURE = re.compile(r"[+−$.-]*\d[\d,.]*+(?!-[^\W\d])")  # 0-circle and 12-star are names
_LONG = 24


def _row(cells: Sequence[Markup], kinds: Sequence[str], total: bool) -> Markup:
    first = _FIRST.format(kinds[0], cells[0])
    rest = join_markup(_CELL.format(kind, cell) for cell, kind in zip(cells[1:], kinds[1:], strict=True))
    return Markup('<tr class="{}">{}{}</tr>').format("total" if total else "", first, rest)


def _remark(remark: Sequence[Markup], columns: int) -> Markup:
    return _REMARK.format(columns, remark[0]) if remark and remark[0] else Markup("")


def _kind(cells: Sequence[Markup]) -> str:
    """Of a column: figures stand to the right, long texts need room."""
    if all(map(_is_figure, cells)):
        return "number"
    return "text" if any(len(cell.striptags()) > _LONG for cell in cells) else ""


def _is_figure(cell: Markup) -> bool:
    return cell in ("n/a", "") or (_FIGURE.match(cell) is not None and ", " not in cell)


def folded(title: str, *content: Markup) -> Markup:
    """Content that opens on demand."""
    return Markup("<details><summary>{}</summary>{}</details>").format(shown(title), join_markup(content))


def preformatted(text: str) -> Markup:
    """Text with its line breaks, control characters as escapes."""
    lines = "\n".join(printable(line) for line in text.split("\n"))
    return Markup('<pre tabindex="0">{}</pre>').format(lines)


def navigation(anchors: Iterable[tuple[str, str]]) -> Markup:
    """Links to sections: anchor, text."""
    links = join_markup(Markup('<a href="#{}">{}</a>').format(anchor, shown(text)) for anchor, text in anchors)
    return Markup('<nav aria-label="Sections">{}</nav>').format(links)
