"""This process and all it started: CPU time and memory, from two small files of each process."""

import os

from flatout.machine.files import read_text

_LOOK_EVERY = 5  # samples; finding the processes costs more than reading them, and workers live long
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def parse_cpu_seconds(stat: str | None) -> float | None:
    """User and system time of all threads, from /proc/PID/stat; the name in brackets may hold anything."""
    fields = (stat or "").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND if len(fields) > 12 else None


def parse_pages(statm: str | None) -> tuple[int, int] | None:
    """Private and shared bytes in memory, from /proc/PID/statm."""
    fields = (statm or "").split()
    if len(fields) < 3:
        return None
    resident, shared = int(fields[1]), int(fields[2])
    return max(0, resident - shared) * _PAGE_BYTES, shared * _PAGE_BYTES


class ProcessTree:
    """A process and all its descendants; `root` is this one by default."""

    def __init__(self, root: int | None = None) -> None:
        self._root = os.getpid() if root is None else root
        self._pids: list[int] = []
        self._looked = 0
        self._cpu_before: dict[int, float] | None = None

    def pids(self) -> list[int]:
        """Looked up again at every fifth call: a worker that starts is seen a few seconds later."""
        if self._looked % _LOOK_EVERY == 0:
            self._pids = _descendants(self._root)
        self._looked += 1
        return self._pids

    def cores(self, interval_seconds: float | None) -> float | None:
        """CPU seconds per second, of all processes together; a process that ended takes its last interval with it."""
        now = {pid: parse_cpu_seconds(read_text(f"/proc/{pid}/stat")) for pid in self.pids()}
        known = {pid: seconds for pid, seconds in now.items() if seconds is not None}
        before, self._cpu_before = self._cpu_before, known
        if not known or before is None or not interval_seconds:
            return None
        return (
            sum(max(0.0, seconds - before[pid]) for pid, seconds in known.items() if pid in before) / interval_seconds
        )

    def memory_bytes(self) -> tuple[int, int] | None:
        """Private pages of every process, and the largest shared part once: libraries and buffers are the same pages
        in all of them, so that a plain sum would count them many times over."""
        pages = [found for pid in self._pids if (found := parse_pages(read_text(f"/proc/{pid}/statm"))) is not None]
        return (sum(private for private, _ in pages), max(shared for _, shared in pages)) if pages else None


def _descendants(root: int) -> list[int]:
    """The process, its children and theirs; only itself where the kernel does not list children."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            queue += map(int, (read_text(f"/proc/{pid}/task/{thread}/children") or "").split())
    return found
