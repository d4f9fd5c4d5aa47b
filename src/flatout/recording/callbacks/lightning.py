"""Lightning: Trainer(callbacks=[FlatoutRecording("runs/mine")]) records a fit into a run directory.

The hooks see loader, forward, backward, optimizer and checkpoints; the callback says where the fit begins and ends, and
hands over what was logged. The package may be `lightning` or `pytorch_lightning`.
"""

import importlib
import sys
from typing import Any

from flatout.recording.callbacks.opened import CallbackRun


def _callback_class() -> Any:
    """Of the package that is in use, or else of the one that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise ModuleNotFoundError("Lightning is not installed; pip install lightning", name="lightning")


class FlatoutRecording(_callback_class()):  # type: ignore[misc]
    """One fit, one run; rank 0's."""

    def __init__(self, run: str, instance: str | None = None, name: str | None = None) -> None:
        self._run = CallbackRun(run, instance, name)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._run.open()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._run.log(trainer.callback_metrics)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.close(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._run.close(exception)
