"""This process and all it started: CPU time and memory, from two small files of each process."""

import os

from flatout.machine.files import read_text

_LOOK_EVERY = 10  # calls, two of each sample; finding the processes costs more than reading them, and workers live long
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


def parse_run_delay(schedstat: str | None) -> float | None:
    """Seconds for which a thread was ready and had no core, from /proc/PID/task/TID/schedstat."""
    fields = (schedstat or "").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 and fields[1].isdigit() else None


class ProcessTree:
    """Processes and all their descendants; this one by default."""

    def __init__(self, *roots: int) -> None:
        self._roots = roots or (os.getpid(),)
        self._pids: list[int] = []
        self._looked = 0
        self._cpu_before: dict[int, float] | None = None
        self._delay_before: dict[str, float] | None = None

    def pids(self) -> list[int]:
        """Looked up again at every tenth call: a worker that starts is seen a few seconds later."""
        if self._looked % _LOOK_EVERY == 0:
            self._pids = list(dict.fromkeys(pid for root in self._roots for pid in _descendants(root)))
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

    def waiting_cores(self, interval_seconds: float | None) -> float | None:
        """Threads of all of them that were ready and had no core, on average since the last call; after `cores`."""
        now: dict[str, float] = {}
        for pid in self._pids:
            for thread in _threads(pid):
                if (delay := parse_run_delay(read_text(f"/proc/{pid}/task/{thread}/schedstat"))) is not None:
                    now[thread] = delay
        before, self._delay_before = self._delay_before, now
        if not now or before is None or not interval_seconds:
            return None
        return sum(max(0.0, delay - before.get(thread, 0.0)) for thread, delay in now.items()) / interval_seconds

    def memory_bytes(self) -> tuple[int, int] | None:
        """Private pages of every process, and the largest shared part once: libraries and buffers are the same pages
        in all of them, so that a plain sum would count them many times over."""
        pages = [found for pid in self.pids() if (found := parse_pages(read_text(f"/proc/{pid}/statm"))) is not None]
        return (sum(private for private, _ in pages), max(shared for _, shared in pages)) if pages else None


def own_identity() -> tuple[str, int]:
    """Where this process's number means this process, and the number: the same place is the same kernel and list of
    processes, so that its CPU time can be read there."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: nobody else's CPU time is read
        namespace = f"process {os.getpid()}"
    return f"{(read_text('/proc/sys/kernel/random/boot_id') or '').strip()} {namespace}", os.getpid()


def _descendants(root: int) -> list[int]:
    """The process, its children and theirs; only itself where the kernel does not list children."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        for thread in _threads(pid):
            queue += map(int, (read_text(f"/proc/{pid}/task/{thread}/children") or "").split())
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return []
