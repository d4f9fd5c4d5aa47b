"""The entry point `flatout`: runs a command and turns what it raises into one line and an exit code."""

import errno
import faulthandler
import os
import sys
from typing import Any, NoReturn

from flatout.cli import register
from flatout.cli.apps import app
from flatout.errors import FlatoutError
from flatout.machine.parents import exit_with_parent, stop_with_parent

_OF_THE_FILE = {
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
}


def run() -> Any:
    """Entry point: a user's mistake is one line on stderr and an exit code; anything else is a bug with a traceback."""
    from flatout.machine.lasting_output import outlive_readers

    if "OMP_WAIT_POLICY" not in os.environ:
        # before torch is loaded: compute threads spin for 10 ms while they wait for each other, and on a host whose
        # cores others use too the one that is waited for gets none: steps took 30 times as long (OMP's default)
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # a rank of torchrun, which waits for it
        exit_with_parent(os.getppid())
    stop_with_parent()
    outlive_readers()
    faulthandler.enable(file=2)  # a crash of compiled code names the Python lines of all threads; nothing else would
    register()
    try:
        return app(standalone_mode=False)  # else typer answers a wrong option with a page of help
    except FlatoutError as error:
        if error.quiet:  # another rank of the run says it
            _exit(error.exit_code)
        sys.stderr.write("".join(f"{line}\n" for line in error.details))
        _say_and_exit(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("flatout: interrupted\n")
        _exit(130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer brings its own copy of click or uses an installed one
            _say_if_out_of_memory(error)
            if isinstance(error, OSError) and (said := about_a_file(error)) is not None:
                _say_and_exit(said, 2)
            if "WORLD_SIZE" in os.environ:
                sys.excepthook(type(error), error, error.__traceback__)
                _exit(1)
            raise
        usage: Any = error
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            usage.show()
            sys.exit(usage.exit_code)
        command = usage.ctx.command_path if getattr(error, "ctx", None) else "flatout"
        _say_and_exit(f"{usage.format_message().rstrip('.')}; see {command} --help", usage.exit_code)


def about_a_file(error: OSError) -> str | None:
    """One line of what the system refused for a file by what it is (its name, rights or place); None where an error
    may as well be flatout's own: a file that is not there, or there already."""
    if error.filename is None or error.errno not in _OF_THE_FILE:
        return None
    name = str(error.filename)
    return f"cannot use {name if len(name) <= 200 else f'{name[:200]}…'!r}: {error.strerror}"


def _say_if_out_of_memory(error: Exception) -> None:
    if not isinstance(error, MemoryError | OSError | RuntimeError | ImportError):
        return
    try:
        from flatout.machine.available_memory import explain_start

        said = explain_start(error)
    except (MemoryError, ImportError):  # not even enough to say how much
        said = "not enough memory to start; raise ulimit -v or the memory of the container to 1 GB at least"
    if said is not None:
        _say_and_exit(said, 1)


def _say_and_exit(message: str, exit_code: int) -> NoReturn:
    sys.stderr.write(f"flatout: {' '.join(message.split())}\n")
    _exit(exit_code)


def _exit(exit_code: int) -> NoReturn:
    """A rank that fails has a thread that watches the others: inside the store at a usual exit, it aborts the process,
    and whoever started the rank sees SIGABRT instead of the exit code."""
    if "WORLD_SIZE" in os.environ:
        from flatout.machine.lasting_output import leave

        leave(exit_code)
    sys.exit(exit_code)
