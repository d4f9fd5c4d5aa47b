"""The stages of a loader benchmark as a table."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from flatout.units import format_bytes

STAGES = {"read": "read", "decode": "+ decode", "augment": "+ augment", "loader": "loader", "cached": "from cache"}
"""How a stage is called in the table."""
_BAR_CELLS = 16


def say_workers(count: int) -> str:
    """A number of workers in words."""
    return "no worker" if count == 0 else "1 worker" if count == 1 else f"{count} workers"


def bench_table(result: dict[str, Any]) -> Group:
    """What `commands.bench_loader` measured, as a table with the sentence that says what limits."""
    table = Table(box=None, header_style="dim")
    for name in ("stage", "images/s", "spread", "per core", "cores", "bytes/s", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right", no_wrap=True)
    fastest = max(stage["images_per_second"] for stage in result["stages"])
    for stage in result["stages"]:
        busy, per_core = stage["cores_busy"], stage["images_per_second_per_core"]
        table.add_row(
            Text(STAGES[stage["name"]] + (f" x{stage['threads']}" if stage["threads"] > 1 else "")),
            f"{stage['images_per_second']:.0f}",
            f"±{50 * (stage['high'] - stage['low']) / stage['images_per_second']:.0f} %",
            "n/a" if per_core is None else f"{per_core:.0f}",
            "n/a" if busy is None else f"{busy:.1f}",
            "n/a" if stage["bytes_per_second"] is None else f"{format_bytes(stage['bytes_per_second'])}/s",
            Text("█" * max(1, round(_BAR_CELLS * stage["images_per_second"] / fastest)), style="blue"),
        )
    head = (
        f"{result['path']}: view {result['view']}, batch {result['batch_size']}, {say_workers(result['workers'])} "
        f"({result['worker_kind']}), {result['cores']} cores, decoder {result['decoder']}\n"
    )
    notes = [Text(f"note: {note}", style="dim") for note in result["notes"]]
    return Group(Text(head), table, Text(f"\n{result['limit']['sentence']}\n", "bold"), *notes)
