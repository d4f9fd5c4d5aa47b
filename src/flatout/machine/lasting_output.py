"""Standard output and error that outlive whoever reads them: training goes on when a pipe or a terminal is closed."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

_NOBODY_READS = (errno.EPIPE, errno.EIO)  # a closed pipe, a terminal that is gone


class _Lasting:
    """A stream; from the first write that nobody can read any more, everything goes to /dev/null."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        written = self._guarded(lambda: self._stream.write(text))
        return len(text) if written is None else written

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
            setattr(sys, name, _Lasting(stream))
