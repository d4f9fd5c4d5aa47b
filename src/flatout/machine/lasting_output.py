"""Standard output and error that outlive whoever reads them: training goes on when a pipe or a terminal is closed.

Words from files (names of runs, classes and samples, causes) go to a terminal as words: what would move its cursor,
clear it or set its title is shown as a replacement character."""

import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

_NOBODY_READS = (errno.EPIPE, errno.EIO)  # a closed pipe, a terminal that is gone


_COLOURS = r"\x1b\[[0-9;]*m"
_PROGRESS = rf"{_COLOURS}|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r"  # hide and show the cursor, go up, clear a line
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"


def without_controls(text: str, with_progress: bool) -> str:
    """Colours stay, and with `with_progress` what a progress bar moves the cursor by."""
    ours = _PROGRESS if with_progress else _COLOURS
    return re.sub(f"({ours})|{_CONTROL}", lambda found: found[1] or "\ufffd", text)


class _Lasting:
    """A stream; from the first write that nobody can read any more, everything goes to /dev/null."""

    def __init__(self, stream: TextIO, with_progress: bool) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._with_progress = with_progress

    def write(self, text: str) -> int:
        shown = without_controls(text, self._with_progress) if self._on_terminal else text
        self._guarded(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._guarded(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _guarded(self, action: Callable[[], int | None]) -> int | None:
        try:
            return action()
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
        null = os.open(os.devnull, os.O_WRONLY)  # in its place, also for what is buffered and flushed at the exit
        os.dup2(null, self._stream.fileno())
        os.close(null)
        return None


def leave(exit_code: int) -> NoReturn:
    """For a rank whose files are closed: threads of a process group can end a usual exit with SIGABRT ("terminate
    called without an active exception"), and whoever started the rank would take that for a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def outlive_readers() -> None:
    """For a whole process, at its start. Streams that somebody put in place of the process's own are left alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the start, as with >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _Lasting(stream, with_progress=name == "stderr"))
