"""Which pixels of an earlier run may be used again: those whose files are proven to be what they were made from."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from flatout.cache.arena import Arena
from flatout.data.source.identity import Words, are_equal
from flatout.machine.files import write_whole

_FILE = "locators"  # of the bytes that each row was, or will be, decoded from


def drop_unproven(arena: Arena, folder: Path, locators: Words) -> int:
    """Forget the rows of an arena on disk that another locator, or none, stands for; how many were there.

    The rows are forgotten first: a process that is killed before it wrote the locators does it again.
    """
    now = np.zeros((arena.rows, 2), np.uint64)
    now[: min(len(locators), arena.rows)] = locators[: arena.rows]
    path = folder / _FILE
    unproven = np.flatnonzero(~are_equal(_saved(path, arena.rows), now))
    dropped = int(np.count_nonzero(arena.find(unproven)[1]))
    arena.forget(unproven)
    if len(unproven):
        with suppress(OSError):
            path.unlink(missing_ok=True)  # none is better than an old one
            write_whole(path, now.tobytes())
    return dropped


def _saved(path: Path, rows: int) -> Words:
    with suppress(OSError):
        data = path.read_bytes()
        if len(data) == 16 * rows:
            return np.frombuffer(data, np.uint64).reshape(rows, 2)
    return np.zeros((rows, 2), np.uint64)
