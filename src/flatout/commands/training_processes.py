"""Training runs as processes of their own, some of them at the same time; a signal reaches each exactly once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from rich.console import Console

from flatout.machine.parents import child_environment
from flatout.training.stopping import stop_signals
from flatout.units import format_seconds


class StartedJob(Protocol):
    """One `flatout train` that was started."""

    def wait(self, say: Callable[[str], None]) -> tuple[int, str]:
        """Its exit code and the last line of its stderr; each line is said as it comes, where that can be."""

    def stop(self, number: int) -> None:
        """It gets this signal, if it still runs."""


class LocalJob:
    """On this machine, in a session of its own: else a Ctrl-C would reach it twice, from the terminal and from us, and
    the second one ends it without a checkpoint."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "flatout", "train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **child_environment(), **environment},
        )

    def wait(self, say: Callable[[str], None]) -> tuple[int, str]:
        last = ""
        with self._child as child:
            assert child.stderr is not None
            for line in child.stderr:
                last = line.strip() or last
                say(line.rstrip())
        return child.returncode, last

    def stop(self, number: int) -> None:
        if self._child.poll() is None:
            self._child.send_signal(number)


class TrainingProcesses:
    """Starts training runs, here or by another `launch`, and passes signals on."""

    def __init__(
        self,
        console: Console,
        echo: bool = True,
        launch: Callable[[list[str], Mapping[str, str]], StartedJob] = LocalJob,
    ) -> None:
        self.interrupted = False
        self._echo = echo  # what the processes say
        self._console = console
        self._launch = launch
        self._running: set[StartedJob] = set()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "TrainingProcesses":
        self._previous = {number: signal.signal(number, lambda which, _: self.stop(which)) for number in stop_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False, soft_wrap=True)

    def train_together(self, runs: list[list[str]]) -> list[str | None]:
        """All at the same time; how each of them ended."""
        with ThreadPoolExecutor(max(1, len(runs))) as threads:
            return list(threads.map(self.train, runs))

    def train(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> str | None:
        """None if the run ended well, else the last line of its stderr. `environment` is added to ours."""
        started = time.monotonic()
        job = self._launch(arguments, environment or {})
        self._running.add(job)
        if self.interrupted:  # between the last look and the start
            job.stop(signal.SIGTERM)
        code, last = job.wait(self.say if self._echo else _say_nothing)
        self._running.discard(job)
        if self._echo:
            self.say(f"{format_seconds(time.monotonic() - started)}, exit code {code}")
        return None if code == 0 else last.removeprefix("flatout: ") or f"exit code {code}"

    def stop(self, number: int = signal.SIGTERM) -> None:
        """All save a checkpoint and end, and none is started any more."""
        self.interrupted = True
        for job in list(self._running):
            job.stop(number)


def _say_nothing(_: str) -> None: ...
