"""Reading the kernel's small text files: in one call, and None where there is none."""

import os

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
