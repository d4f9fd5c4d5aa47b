"""How long a thread was ready to run and had no core: the kernel counts it (run delay, in schedstat)."""

import os
from contextlib import suppress

LANE = "core wait"
"""Of the timeline: what workers waited for a core, each by its name."""
_OWN = "/proc/thread-self/schedstat"  # the thread that opens it, whoever reads it then
_MOST_BYTES = 96


def parse_run_delay(text: bytes) -> float:
    """Seconds; the second of its numbers, in nanoseconds. 0 where there is none."""
    fields = text.split()
    return int(fields[1]) / 1e9 if len(fields) > 1 and fields[1].isdigit() else 0.0


def own_wait_seconds() -> float:
    """Of the calling thread since it began; 0 where the kernel does not tell."""
    clock = CoreWait()
    try:
        return clock.seconds()
    finally:
        clock.close()


class CoreWait:
    """Of the thread that makes it. An open file: a reading takes two microseconds."""

    def __init__(self) -> None:
        self._fd: int | None = None
        with suppress(OSError):  # not Linux, or a kernel without schedstat
            self._fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """Since the thread began; 0 where the kernel does not tell."""
        if self._fd is None:
            return 0.0
        try:
            return parse_run_delay(os.pread(self._fd, _MOST_BYTES, 0))
        except OSError:  # the thread is gone
            return 0.0

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
