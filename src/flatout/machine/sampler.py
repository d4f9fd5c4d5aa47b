"""The thread that asks every reader once per interval. It never raises into training and never makes it wait."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

Cell = float | int | str | None

_SHORTEST_SECONDS = 0.1  # the kernel counts CPU time in hundredths of a second: a shorter row would be noise
_STOP_SECONDS = 2.0  # a reader may hang on a dead network disk; the run does not wait for it


class SystemReader(Protocol):
    """One source of columns for system.csv."""

    def describe(self) -> dict[str, Any]:
        """What does not change while the run goes on: sizes, limits, names."""
        ...

    def read(self, interval_seconds: float | None) -> dict[str, Cell]:
        """Cells since the last call, `interval_seconds` ago; None at the first, which has only what needs no past."""
        ...


class Monitor:
    """Samples until stopped. `write` gets each row as it is made, so that a kill -9 loses at most one interval."""

    def __init__(
        self,
        readers: Mapping[str, Callable[[], SystemReader]],
        write: Callable[[dict[str, Cell]], None],
        note: Callable[[str], None],
        clock: Callable[[], float],
        interval_seconds: float = 1.0,
    ) -> None:
        self._openers = readers
        self._write = write
        self._note = note
        self._clock = clock  # seconds since the attempt began, as in its spans
        self._interval_seconds = interval_seconds
        self._readers: dict[str, SystemReader] = {}
        self._columns: dict[str, tuple[str, ...]] = {}
        self._noted: set[str] = set()
        self.description: dict[str, dict[str, Any]] = {}
        """What each reader says of itself, once it is open."""
        self._sampled: float | None = None
        self._ending = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> "Monitor":
        self._thread.start()
        return self

    def stop(self) -> None:
        """One last row, then the end. Returns within two seconds even if a reader hangs."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        self._over = True

    def _run(self) -> None:
        for name in self._openers:  # here, not in training: opening a driver takes a while
            self._guarded(name, lambda: self._open(name))  # noqa: B023
        self._sample()
        due = time.monotonic()
        while True:
            due = max(due + self._interval_seconds, time.monotonic())  # what was missed is not caught up with
            if self._ending.wait(due - time.monotonic()):
                break
            self._sample()
        if self._sampled is None or self._clock() - self._sampled >= _SHORTEST_SECONDS:
            self._sample()

    def _open(self, name: str) -> None:
        reader = self._openers[name]()
        self._readers[name] = reader
        self.description[name] = reader.describe()

    def _sample(self) -> None:
        now = self._clock()
        interval_seconds = None if self._sampled is None else now - self._sampled
        self._sampled = now
        row: dict[str, Cell] = {
            "seconds": round(now, 3),
            "time_unix": round(time.time(), 3),
            "interval_seconds": None if interval_seconds is None else round(interval_seconds, 4),
        }
        for name, reader in self._readers.items():
            cells: dict[str, Cell] = dict.fromkeys(self._columns.get(name, ()))
            self._guarded(name, lambda: cells.update(reader.read(interval_seconds)))  # noqa: B023
            self._columns[name] = tuple(cells)
            row |= cells
        if not self._over:  # the table may be closed by now
            self._guarded("system.csv", lambda: self._write(row))

    def _guarded(self, name: str, action: Callable[[], None]) -> None:
        """Whatever goes wrong is said once; training is not the place to hear of it."""
        try:
            action()
        except Exception as error:
            if name not in self._noted:
                self._noted.add(name)
                with suppress(Exception):
                    self._note(
                        f"monitor: {name} cannot be recorded ({type(error).__name__}: {error}); training goes on"
                    )
