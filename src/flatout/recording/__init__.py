"""The ledger for other people's loops: `flatout record`, `flatout.recording(...)` and callbacks for trainers.

In the recorded process: inject/ (found by Python's start-up), activation, patches, ledger, loaders, fetching, lines.
Beside it: launching (starts the command), collecting (writes the run's files). by_hand joins both in one process.

`flatout.recording` is this package and the function that users call: the package itself can be called.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout.recording.by_hand import HandLedger


class _Room(ModuleType):
    def __call__(self, run: str | Path, instance: str | None = None, name: str | None = None) -> "HandLedger":
        from flatout.recording.opening import open_recording

        return open_recording(run, instance, name)


sys.modules[__name__].__class__ = _Room
recording = sys.modules[__name__]
