"""The kernel's small text files, None where there is none; files written whole; files that stay open while in use."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 1 << 20  # /proc/stat of a machine with a thousand cores has 100 kB


def read_text(path: str) -> str | None:
    """A small file of the kernel; None where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:  # a process that ended, an interface that is down
        return None
    finally:
        os.close(fd)


def read_int(path: str) -> int | None:
    """None where there is no file, or no whole number in it."""
    return parse_int(read_text(path))


def parse_int(text: str | None) -> int | None:
    """None for what is no whole number."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def write_whole(path: Path, data: bytes) -> None:
    """The whole new file or the whole old one, never a mixture, whoever else writes it. For caches: a process that is
    killed may leave a file with its number behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


class OpenFile:
    """A file or folder, open for as long as anybody refers to it: who reads or writes at an offset never meets another
    file of the same number."""

    def __init__(self, path: str | Path, flags: int = os.O_RDONLY) -> None:
        self.path = os.fspath(path)
        self._fd = os.open(path, flags | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # the module may be gone before the last reader
        if hasattr(self, "_fd"):
            close(self._fd)
