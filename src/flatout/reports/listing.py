"""All runs in a folder as a table."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from flatout.runs import Run
from flatout.units import format_seconds, format_usd


def runs_table(runs: Sequence[Run]) -> Table:
    table = Table(box=None, header_style="dim")
    for name in ("run", "status", "top-1", "epochs", "samples/s", "wall", "cost"):
        table.add_column(name, justify="left" if name in ("run", "status") else "right")
    for run in runs:
        top1 = run.summary.get("accuracy", {}).get("top1")
        speed = run.summary.get("throughput", {}).get("samples_per_second")
        table.add_row(
            Text(run.name),
            Text(f"{run.status} (emulated)" if run.summary.get("device", {}).get("emulated") else run.status),
            "n/a" if top1 is None else f"{100 * top1:.1f} %",
            str(len(run.epochs)),
            "n/a" if speed is None else f"{speed:.0f}",
            format_seconds(run.summary.get("time", {}).get("wall_seconds")),
            format_usd((run.summary.get("cost") or {}).get("total_usd")),
        )
    return table
