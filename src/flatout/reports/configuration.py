"""A configuration as a table of key, value and origin."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def config_table(rows: Sequence[tuple[str, Any, str]]) -> Table:
    """Rows are key, value and origin; defaults are dim."""
    table = Table("key", "value", "from", box=None, header_style="dim")
    for key, value, origin in rows:
        style = "dim" if origin == "default" else "default"
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        table.add_row(Text(key, style=style), Text(shown, style=style), Text(origin, style=style))
    return table
