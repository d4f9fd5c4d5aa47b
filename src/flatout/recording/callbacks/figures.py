"""What trainers log, as columns of a run."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_HELD_OUT = ("val", "valid", "validation", "eval", "test")
_KNOWN = {"acc": "top1", "accuracy": "top1", "top1": "top1", "top5": "top5", "loss": "val_loss"}


def figures(logged: Mapping[str, Any]) -> dict[str, float]:
    """Scalars, under names that a column can have: eval_accuracy, val/acc and the like become the top1 that reports
    know, eval_loss the val_loss. Everything else is left out."""
    found = {}
    for name, value in logged.items():
        with suppress(TypeError, ValueError, RuntimeError):  # a histogram, a text, a tensor of many values
            found[column(name)] = float(value)
    return found


def column(name: str) -> str:
    plain = "".join(letter if letter.isalnum() else "_" for letter in name.lower()).strip("_")
    first, _, rest = plain.partition("_")
    return _KNOWN.get(rest, f"val_{rest}") if first in _HELD_OUT and rest else plain
