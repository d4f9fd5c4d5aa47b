"""Accelerate: Accelerator(log_with=FlatoutTracker("runs/mine")) records from init_trackers() to end_training()."""

from typing import Any

from accelerate.tracking import GeneralTracker

from flatout.recording.by_hand import HandLedger
from flatout.recording.callbacks.opened import CallbackRun


class FlatoutTracker(GeneralTracker):  # type: ignore[misc]
    """What accelerator.log() is given goes to the run's epochs; the hooks see the rest."""

    name = "flatout"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run: str, instance: str | None = None, name: str | None = None) -> None:
        super().__init__()
        self._run = CallbackRun(run, instance, name)

    @property
    def tracker(self) -> HandLedger | None:
        return self._run.ledger

    def start(self) -> None:
        """Called by init_trackers(), in the main process."""
        self._run.open()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The run knows its configuration from what it sees."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self._run.log(values)

    def finish(self) -> None:
        self._run.close(None)
