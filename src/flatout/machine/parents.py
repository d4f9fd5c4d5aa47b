"""Processes that are nothing by themselves end when the one that started them is gone, whatever they are doing.

A thread looks who the parent is; a kill -9 of it changes the answer. The kernel's own signal for this
(PR_SET_PDEATHSIG) comes when the *thread* that forked ends, so a loader opened in a short-lived thread would lose its
workers; and SIGKILL leaves no time to write how a run ended.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_LOOK_SECONDS = 0.5
_PARENT = "FLATOUT_PARENT"

_last_words: list[Callable[[str], None]] = []


def child_environment() -> dict[str, str]:
    """Added to the environment of a process that is to end with this one."""
    return {_PARENT: str(os.getpid())}


def exit_with_parent(parent: int | None = None) -> None:
    """To be called first of all in a rank or a worker. `parent` is the process that started it, by default the one
    that `child_environment` names: it may be gone already."""
    parent = _told_parent() if parent is None else parent
    if parent is not None:
        watch_parent(parent, lambda: _end(f"process {parent}, which started this one, is gone"))


def stop_with_parent() -> None:
    """For a whole run that another process started: it stops as by SIGTERM, with a checkpoint."""
    parent = _told_parent()
    if parent is not None:
        watch_parent(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))


@contextmanager
def last_words(say: Callable[[str], None]) -> Iterator[None]:
    """`say` is told the cause before `exit_with_parent` ends this process."""
    _last_words.append(say)
    try:
        yield
    finally:
        _last_words.remove(say)


def watch_parent(parent: int, then: Callable[[], None]) -> None:
    """Calls `then`, in a thread of its own, once `parent` is not the parent any more."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        then()

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _told_parent() -> int | None:
    """Taken out of the environment: what this process starts has another parent."""
    told = os.environ.pop(_PARENT, "")
    return int(told) if told.isdigit() else None


def _end(cause: str) -> None:
    for say in _last_words:
        with suppress(Exception):
            say(cause)
    os._exit(1)
