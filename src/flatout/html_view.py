"""How a result shows itself in a notebook. The rooms that make results draw nothing: who draws is found by name, and
loaded when a notebook asks."""

import importlib
from typing import Any


def html_of(result: Any) -> str:
    """As `_repr_html_` of a class: a page of its own, in a frame."""
    return str(importlib.import_module("flatout.commands.notebook").html_of(result))
