"""flatout: train image classifiers flat out, and know where every second and every dollar went.

Names are loaded on first use, so that importing flatout does not import torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Run", "explain", "normalize", "open_batches", "train"]

if TYPE_CHECKING:
    from flatout.commands.explain import explain as explain
    from flatout.commands.library import open_batches as open_batches
    from flatout.commands.library import train as train
    from flatout.data.pixels.normalize import normalize as normalize
    from flatout.runs import Run as Run

_HOMES = {
    "Run": "flatout.runs",
    "explain": "flatout.commands.explain",
    "normalize": "flatout.data.pixels.normalize",
    "open_batches": "flatout.commands.library",
    "train": "flatout.commands.library",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")
