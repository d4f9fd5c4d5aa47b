"""A folder mounted by FUSE, read-only, whose every open takes a while: what a bucket mounted on a path is like.

    with slow_mount(folder, mount_point, open_seconds=0.02): ...

Speaks the kernel's protocol over /dev/fuse, in a process of its own. Needs root; `can_mount` says whether it may.
"""

import ctypes
import multiprocessing
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _READDIR, _RELEASEDIR, _ACCESS, _INTERRUPT, _BATCH_FORGET = 27, 28, 29, 34, 36, 42
_NO_ANSWER = (_FORGET, _BATCH_FORGET, _INTERRUPT)
_HEADER = struct.Struct("=IIQQIIII")
_MNT_DETACH, _VALID_SECONDS = 2, 3600
_LIBC = ctypes.CDLL(None, use_errno=True)


def can_mount() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


class _Files:
    """Answers of one mounted folder. Nodes are numbered as they are met; 1 is the folder itself."""

    def __init__(self, folder: str, open_seconds: float) -> None:
        self.open_seconds = open_seconds
        self._paths, self._numbers = {1: folder}, {folder: 1}
        self._lock = threading.Lock()

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == _INIT:
            return struct.pack("=IIIIHHIIHHI7I", 7, 31, 1 << 17, 0, 64, 48, 1 << 17, 1, 0, 0, 0, *[0] * 7)
        if opcode == _LOOKUP:
            return self._entry(os.path.join(self._paths[node], os.fsdecode(body.rstrip(b"\0"))))
        if opcode == _GETATTR:
            return struct.pack("=QII", _VALID_SECONDS, 0, 0) + self._attributes(self._paths[node])
        if opcode in (_OPEN, _OPENDIR):
            return self._open(opcode, node)
        if opcode == _READ:
            handle, offset, size = struct.unpack_from("=QQI", body)
            return os.pread(handle, size, offset)
        if opcode == _READDIR:
            return self._listing(node, *struct.unpack_from("=QI", body, 8))
        if opcode == _RELEASE:
            os.close(struct.unpack_from("=Q", body)[0])
            return b""
        if opcode in (_RELEASEDIR, _FLUSH, _ACCESS):
            return b""
        if opcode == _STATFS:
            return struct.pack("=QQQQQIIII6I", 1 << 20, 0, 0, 1 << 20, 0, 4096, 255, 4096, 0, *[0] * 6)
        raise OSError(38, "not implemented")

    def _open(self, opcode: int, node: int) -> bytes:
        handle = 0
        if opcode == _OPEN:
            time.sleep(self.open_seconds)
            handle = os.open(self._paths[node], os.O_RDONLY)
        return struct.pack("=QII", handle, 0, 0)

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(path)
        return struct.pack("=QQQQII", self._number(path), 0, _VALID_SECONDS, _VALID_SECONDS, 0, 0) + attributes

    def _number(self, path: str) -> int:
        with self._lock:
            number = self._numbers.setdefault(path, len(self._numbers) + 1)
            self._paths[number] = path
            return number

    def _attributes(self, path: str) -> bytes:
        found = os.stat(path)
        times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
        nanoseconds = (found.st_atime_ns % 10**9, found.st_mtime_ns % 10**9, found.st_ctime_ns % 10**9)
        owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0)
        return struct.pack(
            "=QQQQQQIIIIIIIIII", found.st_ino, found.st_size, found.st_blocks, *times, *nanoseconds, *owner
        )

    def _listing(self, node: int, offset: int, size: int) -> bytes:
        made, folder = b"", self._paths[node]
        for number, name in enumerate(sorted(os.listdir(folder))[offset:], offset + 1):
            kind = stat.S_IFMT(os.stat(os.path.join(folder, name)).st_mode) >> 12
            text = os.fsencode(name)
            entry = struct.pack("=QQII", self._number(os.path.join(folder, name)), number, len(text), kind) + text
            entry += b"\0" * (-len(entry) % 8)
            if len(made) + len(entry) > size:
                break
            made += entry
        return made


def _serve(folder: str, mount_point: str, open_seconds: float, ready: "multiprocessing.synchronize.Event") -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _LIBC.mount(b"slowstore", mount_point.encode(), b"fuse.slowstore", 1, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    ready.set()
    files = _Files(folder, open_seconds)

    def handle(request: bytes) -> None:
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        if opcode in _NO_ANSWER:
            return
        try:
            body, error = files.answer(opcode, node, request[_HEADER.size :]), 0
        except OSError as problem:
            body, error = b"", problem.errno or 5
        except KeyError:
            body, error = b"", 2
        with suppress(OSError):  # whoever asked is gone
            os.write(device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)

    with ThreadPoolExecutor(64) as pool, suppress(OSError):  # the end of the mount is ENODEV
        while True:
            pool.submit(handle, os.read(device, 1 << 18))


@contextmanager
def slow_mount(folder: Path, mount_point: Path, open_seconds: float) -> Iterator[Path]:
    mount_point.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_serve, args=(str(folder.resolve()), str(mount_point), open_seconds, ready))
    process.start()
    try:
        assert ready.wait(60), "the folder was not mounted"
        yield mount_point
    finally:
        _LIBC.umount2(str(mount_point).encode(), _MNT_DETACH)
        process.join(5)
        process.kill()
        process.join()
