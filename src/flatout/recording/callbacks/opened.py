"""The run of one callback: opened where training begins, closed where it ends, however it does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.recording.by_hand import HandLedger
from flatout.recording.callbacks.figures import figures
from flatout.recording.opening import next_free, open_recording


class CallbackRun:
    """A callback that is used a second time gets a run of the next free name."""

    def __init__(self, run: str | Path, instance: str | None = None, name: str | None = None) -> None:
        self._run = Path(run)
        self._instance = instance
        self._name = name
        self._again = False
        self.ledger: HandLedger | None = None

    def open(self) -> None:
        self.close(None)
        folder = next_free(self._run) if self._again else self._run
        self.ledger = open_recording(folder, instance=self._instance, name=self._name).__enter__()
        self._again = True

    def log(self, logged: Mapping[str, Any]) -> None:
        if self.ledger is not None:
            self.ledger.log(**figures(logged))

    def close(self, error: BaseException | None) -> None:
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            ledger.__exit__(None if error is None else type(error), error, None)
