"""A run as Markdown, for pasting into an issue or a lab book."""

from collections.abc import Iterable, Sequence

from flatout.analysis.answers import answers, is_emulated
from flatout.analysis.details import Details
from flatout.reports.page import printable
from flatout.units import format_seconds, format_share, format_usd

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|#~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def report_markdown(details: Details) -> str:
    """Answers, where the time went, cost."""
    run = details.run
    emulated = " (EMULATED device)" if is_emulated(details) else ""
    parts = [f"# {_text(run.name)}: {run.status}{emulated}"]
    parts += [f"**{_text(alarm)}**" for alarm in details.convergence.get("alarms") or []]
    parts.append(_table(["question", "answer"], [[a.question, a.answer] for a in answers(details)]))
    time = run.summary.get("time") or {}
    wall, seconds = time.get("wall_seconds"), {n: s for n, s in (time.get("parts") or {}).items() if s}
    if wall and seconds:
        rows = [[name.replace("_", " "), format_seconds(s), format_share(s, wall)] for name, s in seconds.items()]
        parts += [
            "## Where the time went",
            _table(["part", "time", "share"], [*rows, ["sum", format_seconds(wall), ""]]),
        ]
    cost = run.summary.get("cost") or {}
    if cost.get("lines"):
        rows = [
            [line["name"], f"{line['quantity']:,.6g} {line['unit']}", format_usd(line["usd"])] for line in cost["lines"]
        ]
        total = ["total", "", format_usd(cost.get("total_usd"))]
        parts += ["## Cost", _table(["item", "quantity", "cost"], [*rows, total])]
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(_text(str(cell)) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _text(value: str) -> str:
    """Names are text, never Markdown or HTML."""
    return printable(value).translate(_SPECIAL)
