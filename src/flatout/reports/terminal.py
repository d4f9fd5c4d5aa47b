"""A run on one screen: verdict line, the ledger as a bar, answers to what people ask, where the files are."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flatout.analysis.answers import answers, is_emulated
from flatout.analysis.details import Details
from flatout.config.tasks import best_metric
from flatout.reports.page import printable
from flatout.reports.values import grid
from flatout.units import format_seconds, format_share

_COLOURS = {
    "startup": "grey50",
    "data_wait": "red",
    "copy": "magenta",
    "forward": "green",
    "backward": "dark_green",
    "communication": "yellow",
    "optimizer": "cyan",
    "validation": "blue",
    "checkpoint": "orange3",
    "other": "grey70",
    "unattributed": "white",
}
_BAR_CELLS = 60
_LEGEND_COLUMNS = 2


def render(details: Details, written: Mapping[str, str] | None = None) -> RenderableType:
    """Everything as one renderable, from the run's files alone; `written` are files to point at."""
    places = {"run": str(details.run.directory), **(written or {})}
    files = grid(((name, _text(place)) for name, place in places.items()), room=2)
    content = Group(*_headline(details), Text(), *_ledger(details), Text(), _answers(details), Text(), files)
    return Panel(content, title=_text(f"flatout: {details.run.name}"), title_align="left", padding=(1, 2))


def _text(value: str, style: str = "") -> Text:
    """Untrusted text: markup is not interpreted, control characters are shown as escapes."""
    return Text(printable(value), style, overflow="fold")


def _headline(details: Details) -> list[Text]:
    run, found = details.run, details.convergence
    colour = {"completed": "bold green", "running": "bold blue", "stopped": "bold yellow"}.get(run.status, "bold red")
    line = Text(run.status, style=colour)
    metric = best_metric(run.config)
    value = (run.summary.get("accuracy") or {}).get(metric.name)
    if value is not None:
        line.append(f"  {metric.title} {metric.write(value)}", style="bold")
    line.append(f"  in {format_seconds((run.summary.get('time') or {}).get('wall_seconds'))}", style="default")
    if is_emulated(details):
        line.append("  EMULATED device: accuracy means nothing", style="bold yellow")
    lines = [line]
    if run.summary.get("cause"):
        lines.append(_text(run.summary["cause"], "yellow"))
    lines += [_text(f"ALARM: {alarm}", "bold red") for alarm in found.get("alarms") or []]
    lines += [_text(details.diagnosis, "yellow")] if details.diagnosis else []
    return lines


def _ledger(details: Details) -> list[RenderableType]:
    """Where the wall clock went: a bar, then its parts by size."""
    time = details.run.summary.get("time") or {}
    wall, parts = time.get("wall_seconds"), {name: each or 0.0 for name, each in (time.get("parts") or {}).items()}
    if not wall:
        return [Text("no time recorded yet", style="dim")]
    bar = Text()
    for name, cells in _cells(parts, wall).items():
        bar.append("█" * cells, style=_COLOURS.get(name, "white"))
    legend = Table.grid(padding=(0, 1))
    shown = sorted(((s, name) for name, s in parts.items() if s >= 0.001 * wall), reverse=True)
    entries = [_entry(name, seconds, wall) for seconds, name in shown]
    for first in range(0, len(entries), _LEGEND_COLUMNS):
        row = [cell for entry in entries[first : first + _LEGEND_COLUMNS] for cell in (*entry, Text("  "))]
        legend.add_row(*row)
    return [Text("where the time went", style="dim"), bar, legend]


def _entry(name: str, seconds: float, wall: float) -> tuple[Text, Text, Text]:
    key = Text("■ ", style=_COLOURS.get(name, "white")) + Text(name.replace("_", " "), style="default")
    share = Text(format_share(seconds, wall), justify="right")
    return key, share, Text(format_seconds(seconds), style="dim")


def _cells(parts: Mapping[str, float], wall: float) -> dict[str, int]:
    """Cells of the bar; they add up to its length because each ends where its running total does. Parts of a damaged
    run may be longer than its wall clock: the bar ends there."""
    cells, at = {}, 0.0
    for name, seconds in parts.items():
        end = min(at + seconds, wall)
        cells[name] = round(_BAR_CELLS * end / wall) - round(_BAR_CELLS * at / wall)
        at = end
    return cells


def _answers(details: Details) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for question, answer in answers(details):
        table.add_row(Text(question, style="dim"), _text(answer))
    return table
