"""How many requests to keep in flight: more while that pays, half as many when the store pushes back."""

import threading
import time
from dataclasses import dataclass

_REQUEST_BYTES = 64 * 1024
"""What one request counts for besides its bytes, so that one figure serves tiny objects and large ranges."""
_WORTHWHILE = 1.03


@dataclass(slots=True)
class InFlightLimit:
    """Decides only; the caller passes the clock and holds the lock. It doubles until that first does not pay, then
    increases by steps; it halves when the store pushes back."""

    maximum: int
    limit: int = 16
    minimum: int = 2
    step: int = 8
    hold_windows: int = 16
    """Most windows to wait after increases that did not pay, before trying again: 2 after the first (one window is
    noisy), twice as many after each further one."""
    _rate: float = 0.0
    """Work per second at the limit before the last increase; 0 is unknown."""
    _lower_limit: int = 0
    """What to return to if the last increase does not pay; 0 if it has been judged."""
    _held: int = 0
    _hold: int = 1
    _doubles: bool = True
    _cut_at: float = float("-inf")
    _busy_since: float = 0.0
    _window_seconds: float = 0.0
    """Of the window so far, up to `_busy_since`; time with nothing in flight does not count."""
    _window_count: int = 0
    _window_full: int = 0
    _window_work: float = 0.0

    def __post_init__(self) -> None:
        self.minimum = min(self.minimum, self.maximum)
        self.limit = max(self.minimum, min(self.limit, self.maximum))

    def resumed(self, now: float) -> None:
        """A request was sent, and it is the only one."""
        self._busy_since = now

    def idle(self, now: float) -> None:
        """The last request in flight has ended."""
        self._window_seconds += now - self._busy_since
        self._busy_since = now

    def completed(self, byte_count: int, now: float, full: bool) -> None:
        """One good answer; `full` says the limit, not the demand, bounded the requests in flight."""
        self._window_count += 1
        self._window_full += full
        self._window_work += byte_count + _REQUEST_BYTES
        seconds = self._window_seconds + now - self._busy_since
        if self._window_count >= 2 * self.limit and seconds > 0:
            self._judge(self._window_work / seconds)
            self._restart_window(now)

    def pushed_back(self, started: float, now: float) -> None:
        """A 503 or a timeout. Requests sent before the last cut say nothing about the limit it set."""
        if started < self._cut_at:
            return
        self.limit = max(self.minimum, self.limit // 2)
        self._cut_at, self._rate, self._lower_limit, self._held, self._doubles = now, 0.0, 0, 0, False
        self._restart_window(now)

    def _restart_window(self, now: float) -> None:
        self._busy_since, self._window_seconds = now, 0.0
        self._window_count, self._window_full, self._window_work = 0, 0, 0.0

    def _judge(self, rate: float) -> None:
        """`rate` is what the present limit gave. An increase that did not pay is undone, and tried again later."""
        if 4 * self._window_full < self._window_count:
            return  # demand is below the limit; a higher limit would be an untested one
        if self._lower_limit and rate <= _WORTHWHILE * self._rate:
            self.limit, self._lower_limit, self._held, self._doubles = self._lower_limit, 0, 0, False
            self._hold = min(2 * self._hold, self.hold_windows)
            return
        first_or_paid = self._rate == 0.0 or self._lower_limit > 0
        self._hold = 1 if self._lower_limit else self._hold
        self._rate = rate if first_or_paid else (self._rate + rate) / 2  # conditions drift, one window is noisy
        self._held += 1
        self._lower_limit = 0
        if self.limit < self.maximum and (first_or_paid or self._held >= self._hold):
            self._lower_limit, self._held = self.limit, 0
            self.limit = min(self.limit + (self.limit if self._doubles else self.step), self.maximum)


class InFlightGate:
    """Lets as many threads of this process send as the limit says."""

    def __init__(self, limit: InFlightLimit) -> None:
        self.limit = limit
        self.in_flight = 0
        self._changed = threading.Condition(threading.Lock())

    def enter(self, seconds: float) -> bool:
        """False if there was no room within `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.in_flight < self.limit.limit, timeout=seconds):
                return False
            if self.in_flight == 0:
                self.limit.resumed(time.monotonic())
            self.in_flight += 1
        return True

    def leave(self, started: float, now: float, byte_count: int | None, pushed_back: bool) -> None:
        """`byte_count` is None where no whole answer came."""
        with self._changed:
            if pushed_back:
                self.limit.pushed_back(started, now)
            elif byte_count is not None:
                self.limit.completed(byte_count, now, full=self.in_flight >= self.limit.limit)
            self.in_flight -= 1
            if self.in_flight == 0:
                self.limit.idle(now)
            room = self.limit.limit - self.in_flight
            if room > 0:
                self._changed.notify(room)
