"""What a person sees while a run goes on: a progress bar on a terminal, a line per interval elsewhere."""

import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flatout.runs import RunDirectory
from flatout.units import format_usd

_LOG_SECONDS = 10.0


class Display:
    """Shows steps as they come. `quiet` shows nothing (for --json and the library)."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = self._console.is_terminal and not quiet
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._live, transient=True)
        self._task: TaskID | None = None
        self._logged = 0.0

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def begin(self, what: str, done: int, total: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, completed=done, figures="")
        self._logged = time.monotonic()

    def begin_once(self, what: str, done: int, total: int) -> None:
        if self._task is None:
            self.begin(what, done, total)

    def advance(self, what: str, done: int, total: int, figures: str) -> None:
        if self._live and self._task is not None:
            self._bar.update(self._task, description=what, completed=done, figures=figures)
        elif not self._quiet and time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            self.say(f"{what}  {done}/{total}  {figures}")


class RunLog:
    """Says something on the display and in the run's log.txt; without `writes`, on the display alone."""

    def __init__(self, display: Display, directory: RunDirectory, writes: bool) -> None:
        self._display = display
        self._directory = directory
        self._writes = writes

    def say(self, text: str) -> None:
        self._display.say(text)
        if not self._writes:
            return
        with suppress(OSError), self._directory.log.open("a", encoding="utf-8", errors="surrogateescape") as log:
            log.write(text + "\n")


def step_figures(loss: float | None, samples_per_second: float, wait_share: float, spent_usd: float | None) -> str:
    """The figures beside the bar: loss, speed, share of the time spent waiting for data, dollars so far."""
    parts = [f"loss {loss:.3f}"] if loss is not None else []
    parts += [f"{samples_per_second:.0f} samples/s", f"data wait {100 * wait_share:.0f} %"]
    return "  ".join(parts if spent_usd is None else [*parts, format_usd(spent_usd)])
