"""flatout: train image classifiers flat out, and know where every second and every dollar went.

Names are loaded on first use, so that importing flatout does not import torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Predicted",
    "Run",
    "TrainedModel",
    "compare",
    "dashboard",
    "evaluate",
    "explain",
    "load",
    "normalize",
    "open_batches",
    "predict",
    "recording",
    "train",
]

if TYPE_CHECKING:
    from flatout.commands.compare import compare as compare
    from flatout.commands.evaluate import evaluate as evaluate
    from flatout.commands.explain import explain as explain
    from flatout.commands.library import open_batches as open_batches
    from flatout.commands.library import train as train
    from flatout.commands.predict import predict as predict
    from flatout.data.pixels.normalize import normalize as normalize
    from flatout.recording.opening import open_recording as recording
    from flatout.runs import Run as Run
    from flatout.trained.model import Predicted as Predicted
    from flatout.trained.model import TrainedModel as TrainedModel
    from flatout.trained.model import load as load
    from flatout.web.embedding import dashboard as dashboard

_HOMES = {
    "Predicted": "flatout.trained.model",
    "Run": "flatout.runs",
    "TrainedModel": "flatout.trained.model",
    "compare": "flatout.commands.compare",
    "dashboard": "flatout.web.embedding",
    "evaluate": "flatout.commands.evaluate",
    "explain": "flatout.commands.explain",
    "load": "flatout.trained.model",
    "normalize": "flatout.data.pixels.normalize",
    "open_batches": "flatout.commands.library",
    "predict": "flatout.commands.predict",
    "recording": "flatout.recording",
    "train": "flatout.commands.library",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
