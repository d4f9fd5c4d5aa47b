"""Where a recorded process leaves what it saw, until `collecting` makes the run's own files of it.

recording/rank0-1.claim     pid of the process that is rank 0 in attempt 1
recording/rank0.jsonl       events: what the process is, steps, loaders, hottest lines, what is missing, how it ended
recording/rank0.now         one line, written anew every second: the part that is open, since when, and where
recording/fetch-<pid>-…     what the loader workers of process <pid> did
recording/<pid>.jsonl       events of a process that never trained
spans/rank0.jsonl           as in every run
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "recording"
_MOST_ATTEMPTS = 10_000


def claim_rank(run: Path, told_rank: int | None) -> tuple[int, int] | None:
    """Rank and attempt of this process. `told_rank` is what a launcher says; without one it is rank 0, or nobody where
    another process trains as rank 0 at this moment: without a process group they have nothing to do with each other."""
    rank = told_rank or 0
    for attempt in range(1, _MOST_ATTEMPTS):
        path = run / FOLDER / f"rank{rank}-{attempt}.claim"
        with suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.write(fd, b"%d\n" % os.getpid())
            os.close(fd)
            return rank, attempt
        if told_rank is None and _is_held(path):
            return None
    return None


def _is_held(claim: Path) -> bool:
    try:
        pid = int(claim.read_text() or 0)
        if pid == os.getpid():  # the same process trains a second time, by hand
            return False
        os.kill(pid, 0)
        return pid > 0
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False


def append_lines(path: Path, lines: list[str]) -> None:
    """One write for all, so that a kill leaves whole lines but for the last."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, "".join(lines).encode("utf-8", "surrogateescape"))
    finally:
        os.close(fd)


def event(kind: str, value: Any) -> str:
    """One line of an events file."""
    return json.dumps({kind: value}, default=str) + "\n"


class Tail:
    """Reads what was appended to a file since the last time: whole lines, as mappings; torn ones are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found: list[dict[str, Any]] = []
        for line in whole.splitlines():
            with suppress(ValueError):
                values = json.loads(line)
                found += [values] if isinstance(values, dict) else []
        return found
