"""Training runs as processes of their own, some of them at the same time; a signal reaches each exactly once."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Console

from flatout.machine.parents import child_environment
from flatout.training.stopping import stop_signals
from flatout.units import format_seconds


class TrainingProcesses:
    """Starts `flatout train` and passes signals on. A child has a session of its own: else a Ctrl-C would reach it
    twice, from the terminal and from us, and the second one ends it without a checkpoint."""

    def __init__(self, console: Console, echo: bool = True) -> None:
        self.interrupted = False
        self._echo = echo  # what the processes say
        self._console = console
        self._running: set[subprocess.Popen[str]] = set()
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

    def train(self, arguments: list[str]) -> str | None:
        """None if the child ended well, else the last line of its stderr."""
        started, last = time.monotonic(), ""
        command = [sys.executable, "-m", "flatout", "train", *arguments]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **child_environment()},
        ) as child:
            self._running.add(child)
            if self.interrupted:  # between the last look and the start
                child.terminate()
            assert child.stderr is not None
            for line in child.stderr:
                last = line.strip() or last
                if self._echo:
                    self.say(line.rstrip())
        self._running.discard(child)
        if self._echo:
            self.say(f"{format_seconds(time.monotonic() - started)}, exit code {child.returncode}")
        return None if child.returncode == 0 else last.removeprefix("flatout: ") or f"exit code {child.returncode}"

    def stop(self, number: int = signal.SIGTERM) -> None:
        """All save a checkpoint and end, and none is started any more."""
        self.interrupted = True
        for child in list(self._running):
            if child.poll() is None:
                child.send_signal(number)
