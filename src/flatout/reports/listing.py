"""All runs in a folder as a table."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from flatout.runs import Run
from flatout.units import format_seconds, format_usd


def runs_table(runs: Sequence[Run]) -> Table:
    """A row for each run."""
    table = Table(box=None, header_style="dim")
    for name in ("directory", "name", "status"):
        table.add_column(name, overflow="fold", no_wrap=name != "name")  # a directory in one piece, to be typed again
    for name in ("accuracy", "epochs", "samples/s", "wall", "cost"):
        table.add_column(name, justify="right")
    for run in runs:
        speed = run.summary.get("throughput", {}).get("samples_per_second")
        table.add_row(
            Text(str(run.directory)),
            Text(run.name),
            Text(f"{run.status} (emulated)" if run.summary.get("device", {}).get("emulated") else run.status),
            _accuracy(run),
            str(len(run.epochs)),
            "n/a" if speed is None else f"{speed:.0f}",
            format_seconds(run.summary.get("time", {}).get("wall_seconds")),
            format_usd((run.summary.get("cost") or {}).get("total_usd")),
        )
    return table


def _accuracy(run: Run) -> str:
    """Top-1 of a classifier, BLEU of a translator."""
    accuracy = run.summary.get("accuracy") or {}
    if accuracy.get("bleu") is not None:
        return f"{accuracy['bleu']:.1f} BLEU"
    return "n/a" if accuracy.get("top1") is None else f"{100 * accuracy['top1']:.1f} %"
