"""The whole files in the working directory, put back after each round wherever one of them was touched."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

Kept = tuple[int, bytes | str | None]  # mode; contents of a file, where a link leads, None for a folder
State = tuple[int, ...]


class WorkingCopy:
    """Of what is there when it is made, but for the top folder `but`.

    Every file is given a time of its own, to the nanosecond, in which nothing else is written: a file with another
    time, size, mode or inode was touched, and all others are as they were without a byte of them being read."""

    def __init__(self, but: str = "") -> None:
        self._but = but
        self._whole = self._read()
        self._left: dict[str, State] = {}
        for path in self._whole:
            self._leave(path)

    def put_back(self) -> None:
        """What was touched or removed, and nothing else remains."""
        there = {path: _state(about) for path, about in _walked(self._but)}
        gone = {path for path, state in there.items() if state != self._left.get(path)}
        for path in gone:
            _remove(path)
        inside = tuple(f"{path}/" for path in gone)
        for path in self._whole:  # folders before what is in them
            if path not in there or path in gone or path.startswith(inside):
                self._make(path)

    def leave_anew(self, folder: str) -> None:
        """As if its files had been written this moment."""
        for path in self._whole:
            if path.startswith(f"{folder}/"):
                self._leave(path)

    def check(self) -> None:
        """By every byte, for those who doubt the above."""
        there = self._read()
        wrong = [path for path in {**there, **self._whole} if there.get(path) != self._whole.get(path)]
        if wrong:
            raise SystemExit(f"not put back: {', '.join(wrong)}")

    def _read(self) -> dict[str, Kept]:
        return {path: (about.st_mode, _contents(path, about.st_mode)) for path, about in _walked(self._but)}

    def _make(self, path: str) -> None:
        mode, contents = self._whole[path]
        if contents is None:
            os.mkdir(path)
        elif isinstance(contents, str):
            os.symlink(contents, path)
        else:
            Path(path).write_bytes(contents)
        if not isinstance(contents, str):
            os.chmod(path, stat.S_IMODE(mode))
        self._leave(path)

    def _leave(self, path: str) -> None:
        now = time.time_ns()  # what is written gets that of the kernel's last tick
        os.utime(path, ns=(now, now), follow_symlinks=False)
        self._left[path] = _state(os.lstat(path))


def _walked(but: str, folder: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Everything below, a folder before what is in it."""
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if path != but:
                yield path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield from _walked(but, path)


def _contents(path: str, mode: int) -> bytes | str | None:
    if stat.S_ISLNK(mode):
        return os.readlink(path)
    return Path(path).read_bytes() if stat.S_ISREG(mode) else None  # a pipe would wait for a writer


def _state(about: os.stat_result) -> State:
    """The time of a folder is that of what is in it."""
    if stat.S_ISDIR(about.st_mode):
        return (about.st_mode,)
    return about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):  # else it went with its folder
        os.unlink(path)
