"""A hint while a run goes on: only when it is clear, and only one."""

from collections import deque

_STEPS = 20
_CLEARLY = 0.3


class LiveHint:
    """Looks at the last steps; says something when the device clearly waits for data."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_STEPS)

    def add(self, step_seconds: float, wait_seconds: float) -> None:
        self._recent.append((step_seconds, wait_seconds))

    def text(self) -> str | None:
        """None while there is too little to go by, or nothing to say."""
        stepping = sum(step for step, _ in self._recent)
        waiting = sum(wait for _, wait in self._recent)
        if len(self._recent) < _STEPS or waiting <= _CLEARLY * stepping:
            return None
        return f"the device waits for data {100 * waiting / stepping:.0f} % of the time: see flatout explain"
