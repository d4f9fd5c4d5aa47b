"""Reasons to end a run before its last step: a signal, a time limit, a cost limit."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from flatout.config.schema import StopConfig
from flatout.errors import Interrupted
from flatout.units import format_seconds, format_usd

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


def stop_signals() -> list[signal.Signals]:
    """Ctrl-C, SIGTERM, and SIGHUP for a terminal or connection that is gone, unless that is ignored (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in _NAMES if not (ignored and number is signal.SIGHUP)]


def signal_name(number: int) -> str:
    """As people call it: Ctrl-C for SIGINT."""
    return _NAMES.get(signal.Signals(number), signal.Signals(number).name)


class StopSignals:
    """Ctrl-C, SIGTERM and SIGHUP ask for a checkpoint and an end; a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.last_words: Callable[[str], None] = lambda cause: None  # called before a second Ctrl-C exits
        self._raises = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            with suppress(Exception):
                self.last_words("Ctrl-C, twice; the same command resumes from the newest checkpoint")
            os._exit(130)
        self.received = _NAMES[signal.Signals(number)]
        if self._raises:
            self._raises = False  # cleaning up is not interrupted
            raise Interrupted(f"stopped by {self.received} before training began; the same command starts again")

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While a run starts there is nothing to save: a signal raises Interrupted wherever the main thread is."""
        self._raises = bool(self._previous)
        try:
            yield
        finally:
            self._raises = False


def is_interruption(reason: str) -> bool:
    """Whether a reason to stop, perhaps another rank's, is a signal."""
    return reason.startswith(tuple(_NAMES.values()))


def stop_reason(
    stop: StopConfig, signals: StopSignals, elapsed_seconds: Callable[[], float], spent_usd: Callable[[], float | None]
) -> str | None:
    """Why to stop now, or None."""
    if signals.received is not None:
        return f"{signals.received}; the same command resumes"
    if stop.max_seconds is not None and elapsed_seconds() >= stop.max_seconds:
        return f"reached stop.max_seconds = {format_seconds(stop.max_seconds)}"
    if stop.max_usd is not None and (spent_usd() or 0.0) >= stop.max_usd:
        return f"reached stop.max_usd = {format_usd(stop.max_usd)}"
    return None
