"""A finished run on one screen: verdict line, figures, the ledger as a bar, where the files are."""

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flatout.runs import Run
from flatout.units import format_bits_per_second, format_bytes, format_seconds, format_share, format_usd

_COLOURS = {
    "startup": "grey50", "data_wait": "red", "copy": "magenta", "forward": "green", "backward": "dark_green",
    "communication": "yellow", "optimizer": "cyan", "validation": "blue", "checkpoint": "orange3", "other": "grey70",
    "unattributed": "white",
}  # fmt: skip
_BAR_CELLS = 60


def render(run: Run) -> RenderableType:
    """Everything as one renderable, from the run's files alone."""
    return Panel(
        Group(_headline(run), Text(), _figures(run), Text(), *_ledger(run), Text(), _files(run)),
        title=Text(f"flatout: {run.name}"),
        title_align="left",
        padding=(1, 2),
    )


def _headline(run: Run) -> Text:
    summary = run.summary
    colour = {"completed": "bold green", "running": "bold blue", "stopped": "bold yellow"}.get(run.status, "bold red")
    line = Text(run.status, style=colour)
    top1 = summary.get("accuracy", {}).get("top1")
    if top1 is not None:
        line.append(f"  top-1 {100 * top1:.1f} %", style="bold")
    wall = summary.get("time", {}).get("wall_seconds")
    line.append(f"  in {format_seconds(wall)}", style="default")
    if summary.get("device", {}).get("emulated"):
        line.append("  EMULATED device: accuracy means nothing", style="bold yellow")
    if summary.get("cause"):
        line.append(f"\n{summary['cause']}", style="yellow")
    return line


def _figures(run: Run) -> Table:
    summary = run.summary
    accuracy, throughput = summary.get("accuracy", {}), summary.get("throughput", {})
    data, device = summary.get("data", {}), summary.get("device", {})
    steps = throughput.get("step_seconds") or {}
    table = Table.grid(padding=(0, 3))
    rows = [
        ("accuracy", _accuracy(accuracy)),
        ("loss", f"train {_number(accuracy.get('train_loss'))}, validation {_number(accuracy.get('val_loss'))}"),
        ("speed", f"{_number(throughput.get('samples_per_second'), '.0f')} samples/s, {_step_times(steps)}"),
        ("work", f"{len(run.epochs)} epochs, {len(run.steps)} steps, {summary.get('samples_seen') or 0:,} samples"
                 f", {summary.get('attempts') or 0} attempt(s)"),
        ("data", f"{data.get('samples_total') or 0:,} samples, {format_bytes(data.get('dataset_bytes'))}"
                 f", {data.get('quarantined') or 0} in quarantine"),
        ("device", _device(device)),
        *_link(summary.get("network") or {}),
        ("cost", _cost(summary.get("cost") or {})),
    ]  # fmt: skip
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _device(device: dict[str, Any]) -> str:
    count = device.get("count") or 1
    return f"{device.get('name', 'n/a')}" + (f", {count} ranks" if count > 1 else "")


def _link(network: dict[str, Any]) -> list[tuple[str, str]]:
    """Only ranks have one. A round figure is a port's speed, and somebody can change it."""
    found, cap = network.get("link_bits_per_second"), network.get("link_cap_bits_per_second")
    if found is None:
        return []
    named = "" if cap is None else f": a {format_bits_per_second(cap)} port"
    return [("link", f"{format_bits_per_second(found)} between ranks{named}")]


def _step_times(steps: dict[str, Any]) -> str:
    mean, p50, p95 = (format_seconds(steps.get(name)) for name in ("mean", "p50", "p95"))
    return f"step {mean} (p50 {p50}, p95 {p95})"


def _accuracy(accuracy: dict[str, Any]) -> str:
    if accuracy.get("top1") is None:
        return "n/a (no validation yet)"
    text = f"top-1 {100 * accuracy['top1']:.2f} %"
    if accuracy.get("top5") is not None:
        text += f", top-5 {100 * accuracy['top5']:.2f} %"
    best = accuracy.get("best_epoch")
    return text if best is None else f"{text}, best epoch {best + 1}"


def _cost(cost: dict[str, Any]) -> str:
    total = cost.get("total_usd")
    return "n/a (set cost.instance or cost.usd_per_hour)" if total is None else format_usd(total)


def _number(value: float | None, form: str = ".3f") -> str:
    return "n/a" if value is None else f"{value:{form}}"


def _ledger(run: Run) -> list[RenderableType]:
    """Where the wall clock went: a bar, then its parts by size."""
    time = run.summary.get("time", {})
    wall, parts = time.get("wall_seconds"), time.get("parts") or {}
    if not wall:
        return [Text("no time recorded yet", style="dim")]
    bar, legend = Text(), Table.grid(padding=(0, 2))
    for name, seconds in parts.items():
        bar.append("█" * round(_BAR_CELLS * (seconds or 0) / wall), style=_COLOURS.get(name, "white"))
    shown = [(name, seconds) for name, seconds in parts.items() if seconds and seconds / wall >= 0.001]
    for name, seconds in sorted(shown, key=lambda each: -each[1]):
        legend.add_row(
            Text("■ ", style=_COLOURS.get(name, "white")) + Text(name.replace("_", " ")),
            Text(format_share(seconds, wall), justify="right"),
            Text(format_seconds(seconds), style="dim"),
        )
    return [Text("where the time went", style="dim"), bar, legend]


def _files(run: Run) -> Text:
    checkpoint = run.summary.get("checkpoint") or {}
    text = Text("run  ", style="dim")
    text.append(f"{run.directory}\n", style="default")
    text.append("checkpoints  ", style="dim")
    text.append(f"{checkpoint.get('files') or 0} files, {format_bytes(checkpoint.get('bytes') or 0)}", style="default")
    return text
