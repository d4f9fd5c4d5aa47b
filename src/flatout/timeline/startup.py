"""What happens before the first step, by name: imports, listing, device, model, first batch."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STARTUP_PARTS = ("imports", "listing", "device", "model", "first_batch", "other")


class StartupClock:
    """Seconds of the parts of one attempt's start. Runs before there is a recorder, whose ledger has only the whole."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        assert name in STARTUP_PARTS, name
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def parts(self, startup_seconds: float, import_seconds: float) -> dict[str, float]:
        """Adds up to the ledger's startup and the wait for the first batch; `other` is what has no name."""
        found = {**dict.fromkeys(STARTUP_PARTS, 0.0), **self._seconds, "imports": import_seconds}
        named = sum(seconds for name, seconds in found.items() if name != "first_batch")
        return {**found, "other": max(0.0, startup_seconds - named)}


def process_age_seconds() -> float:
    """Since this process was started, to a hundredth of a second where the kernel says so.

    psutil adds ticks since boot to a time of boot in whole seconds: it is off by up to one.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        import psutil  # a recorded script may run where it is not installed

        return time.time() - psutil.Process().create_time()
