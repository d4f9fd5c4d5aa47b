"""Called once in every process of a recorded command that imports torch: opens its ledger and installs the hooks."""

import atexit
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch

from flatout.recording.draining import WorkerFiles
from flatout.recording.files import FOLDER
from flatout.recording.ledger import ScriptLedger
from flatout.recording.lines import LineSampler
from flatout.recording.patches import Hooks

_EVERY_SECONDS = 1.0
_LINES_SECONDS = 3.0


class Recording:
    """The ledger, the hooks and the sampler of this process."""

    def __init__(self, run: Path, import_seconds: float, started: float | None = None) -> None:
        self._run = run
        self._import_seconds = import_seconds
        self.hooks = Hooks(None)
        self.ledger = self._new_ledger(started)
        self._pid = os.getpid()
        self._sampler: LineSampler | None = None
        self._workers: WorkerFiles | None = None
        self._debugging: set[str] = set()
        self.also: list[tuple[float, Callable[[], None]]] = []
        """What else is to be done every so many seconds, in the sampler's thread; before `start`."""

    def start(self) -> None:
        self.hooks.install()
        for each in self.hooks.missing:
            self.ledger.events.missing(each)
        self._start_sampler()

    def _new_ledger(self, started: float | None) -> ScriptLedger:
        ledger = ScriptLedger(self._run, started)
        ledger.events.told_rank = told_rank
        ledger.events.on_claim = self._describe
        self.hooks.ledger = ledger
        return ledger

    def _start_sampler(self) -> None:
        ledger = self.ledger
        self._sampler = LineSampler(ledger.thread, ledger.part)
        self._workers = WorkerFiles(ledger)
        self._sampler.every(_EVERY_SECONDS, self._tick)
        self._sampler.every(_LINES_SECONDS, self._tell_lines)
        for seconds, action in self.also:
            self._sampler.every(seconds, action)
        self._sampler.start()

    def _tick(self) -> None:
        self.ledger.catch_up()
        if self._sampler is not None and self._workers is not None:
            self._sampler.thread = self.ledger.thread
            self._workers.drain()
        self._write_now()
        self._tell_debugging()
        self.ledger.events.write()

    def _tell_lines(self) -> None:
        if self._sampler is not None and self._workers is not None:
            self.ledger.events.tell("lines", [*self._sampler.counts(), *self._workers.lines()])

    def _tell_debugging(self) -> None:
        """What slows a script down for the sake of finding a mistake, and may have been forgotten."""
        if self.ledger.events.rank is not None and (on := debugging_now()) - self._debugging:
            self._debugging |= on
            self.ledger.events.tell("debugging", sorted(self._debugging))

    def _write_now(self) -> None:
        """For whoever has to say what the process was doing when it was killed."""
        recorder, rank = self.ledger.recorder, self.ledger.events.rank
        told = {
            "time_unix": time.time(),
            "part": recorder.current,
            "seconds": time.perf_counter() - recorder.since,
            "where": self._sampler.where if self._sampler is not None else None,
            "step": self.ledger.book.done,
        }
        name = f"{os.getpid()}.now" if rank is None else f"rank{rank}.now"
        fd = os.open(self._run / FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, json.dumps(told).ljust(500).encode() + b"\n", 0)
        finally:
            os.close(fd)

    def after_fork(self) -> None:
        """In a forked child: it may be a loader worker, a rank, or anything else. Its ledger begins now."""
        self._sampler = None
        self.ledger = self._new_ledger(time.perf_counter())
        self._pid = os.getpid()

    def finish_forked(self) -> None:
        """In a child of multiprocessing, which ends without atexit: what it trained is told before that."""

        def finish() -> None:
            if self.ledger.events.rank is not None:
                self.finish()

        util.Finalize(None, finish, exitpriority=-10)  # after its queues and its own children

    def finish(self, ended: dict[str, Any] | None = None) -> None:
        """When the process ends by itself, or the block that is recorded."""
        with suppress(Exception):
            if self._sampler is not None:
                self._sampler.stop()
                self.ledger.catch_up()
                if self._workers is not None:
                    self._workers.drain()
                self._tell_lines()
            if self.hooks.ledger is not None:
                self.ledger.close(how_it_ended() if ended is None else ended)

    def _describe(self) -> dict[str, Any]:
        if self._sampler is None:
            self._start_sampler()  # a forked rank: threads do not survive a fork
        device = _device()
        return {
            "started_unix": time.time() - self.ledger.recorder.wall_seconds(),
            "import_seconds": self._import_seconds,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
            "device": device,
            "world_size": _world_size(),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else [],
        }


def activate(run: str, import_seconds: float) -> None:
    """The whole of a process: from its start to its end."""
    recording = Recording(Path(run), import_seconds)
    recording.ledger.thread = threading.main_thread().ident or threading.get_ident()
    recording.start()
    os.register_at_fork(after_in_child=recording.after_fork)
    util.register_after_fork(recording, Recording.finish_forked)
    atexit.register(recording.finish)


def told_rank() -> int | None:
    """What the process group or the launcher says; None without either."""
    group = _process_group()
    if group is not None:
        return int(group.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() and "WORLD_SIZE" in os.environ else None


def debugging_now() -> set[str]:
    on = {
        "detect_anomaly": torch.is_anomaly_enabled(),
        "profiler": torch.autograd.profiler._is_profiler_enabled,
        "launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING") == "1",
    }
    return {name for name, is_on in on.items() if is_on}


def _world_size() -> int:
    group = _process_group()
    return 1 if group is None else int(group.get_world_size())


def _process_group() -> Any:
    """torch.distributed, where a group was joined."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _device() -> dict[str, Any]:
    """Where there is a GPU in use, that; asking must not start a CUDA context."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {"kind": "cuda", "name": torch.cuda.get_device_name()}
    return {"kind": "cpu", "name": None}


def told_error(error: BaseException) -> str:
    """In one line. What a loader worker passed on has its whole traceback in it: the first line and the last say it."""
    if (killed := killed_rank(error)) is not None:
        return killed
    text = str(error)
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.splitlines() if line.strip()]
        text = f"{lines[0].rstrip('.')}: {lines[-1]}"
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"


def killed_rank(error: BaseException) -> str | None:
    """What torchrun's error says of a rank that a signal ended; by SIGTERM it ends the others itself."""
    for rank, failure in sorted(getattr(error, "failures", {}).items()):
        code = getattr(failure, "exitcode", 0)
        if code < 0 and -code != signal.SIGTERM:
            return f"rank {rank} ended with {signal.Signals(-code).name}"
    return None


def how_it_ended() -> dict[str, Any]:
    """Python keeps the exception that ended the script for debuggers; in a child of multiprocessing it is raised."""
    error = getattr(sys, "last_value", None) or sys.exception()
    if error is None or isinstance(error, SystemExit):
        return {"cause": None}
    place, trace = "", getattr(error, "__traceback__", None)
    while trace is not None:
        place, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    return {
        "cause": told_error(error),
        "where": place,
        "interrupted": isinstance(error, KeyboardInterrupt),
        "killed": killed_rank(error) is not None,
    }
