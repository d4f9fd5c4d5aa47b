"""What preparing one batch took, measured where it is done: in a loader worker, or in the training thread.

The kernel says how long the thread ran, and how long it waited for a core; what is left of the wall clock it was
blocked: on a disk, a network, a lock. That is `fetch`. What runs inside a known decoder is `decode`, the rest of the
dataset's own code `augment`, a collate_fn of the script's own with it. The data itself is not touched, and nothing
travels with it: workers write small files.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.recording.files import FOLDER, append_lines, event
from flatout.recording.lines import LineSampler
from flatout.timeline.core_wait import CoreWait

LOADER = "FLATOUT_RECORD_LOADER"
"""In the environment while workers are started: pid of the training process and number of the loader."""
DECODERS = (
    ("PIL.ImageFile", "ImageFile", "load"),
    ("PIL.Image", None, "open"),
    ("cv2", None, "imread"),
    ("cv2", None, "imdecode"),
    ("torchvision.io", None, "decode_image"),
    ("torchvision.io", None, "decode_jpeg"),
    ("torchvision.io", None, "read_image"),
)
"""Module, class, function: what others call to turn bytes into pixels."""
_WRITE_SECONDS = 0.5
_SHORT_SECONDS, _LOOK_EVERY = 0.0005, 16  # a batch that is ready so soon: the kernel is not asked about each
_CLOCKS_SECONDS = 5e-6  # reading two clocks takes as long
_local = threading.local()
BatchTimes = tuple[float, float, float, float, float]
"""Seconds of one batch, as `split_stages` takes them."""


class BatchClock:
    """Measures one batch at a time, of one thread."""

    def __init__(self) -> None:
        self._core_wait = CoreWait()
        self._until_look = 0
        self._ran_share = 1.0  # of the newest batch that was looked at
        self.collate_seconds = 0.0
        self.decode_seconds = 0.0
        """CPU time inside decoders."""

    def measure(self, fetch: Callable[..., Any], *args: Any) -> tuple[Any, BatchTimes, float]:
        """The batch, what it took, and when it began (of time.perf_counter)."""
        self.collate_seconds = self.decode_seconds = 0.0
        looks = not self._until_look
        waited = self._core_wait.seconds() if looks else 0.0
        ran, start = time.thread_time(), time.perf_counter()
        batch = fetch(*args)
        wall = time.perf_counter() - start
        if looks:
            ran = time.thread_time() - ran
            waited, self._until_look = self._core_wait.seconds() - waited, _LOOK_EVERY
            self._ran_share = min(1.0, ran / max(1e-9, wall - waited))
        elif wall > _SHORT_SECONDS:  # without what it waited for a core, which is blocked time then
            ran = time.thread_time() - ran
        else:
            ran = wall * self._ran_share
        self._until_look = 0 if wall > _SHORT_SECONDS else self._until_look - 1
        return batch, (wall, ran, waited, self.decode_seconds, self.collate_seconds), start


def split_stages(wall: float, ran: float, waited: float, decoded: float, collated: float) -> dict[str, float]:
    """Adds up to `wall`. The wait for a core, which a busy machine adds to both, is shared out over what ran and what
    was blocked; `collated` is wall clock, `decoded` CPU time."""
    around = max(0.0, wall - collated)
    blocked, computed = wall - ran - waited, max(0.0, ran - collated)
    if blocked < _CLOCKS_SECONDS:
        blocked = 0.0
    fetch = around * blocked / (blocked + computed) if blocked + computed > 0 else around
    work = around - fetch
    decode = work * min(1.0, decoded / ran) if ran > 0 else 0.0
    return {"fetch": fetch, "decode": decode, "augment": work - decode, "collate": min(collated, wall)}


os.register_at_fork(after_in_child=lambda: _local.__dict__.clear())  # the thread is another one then


def clock_of_thread() -> BatchClock:
    try:
        clock: BatchClock = _local.clock
    except AttributeError:
        clock = _local.clock = BatchClock()
    return clock


def timed_collate(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def timed(samples: Any) -> Any:
        started = time.perf_counter()
        try:
            return collate(samples)
        finally:
            clock_of_thread().collate_seconds += time.perf_counter() - started

    return timed


def patch_decoders(done: set[tuple[str, str | None, str]]) -> None:
    """Those that are imported by now and not in `done`."""
    for decoder in DECODERS:
        module_name, owner_name, function_name = decoder
        if decoder in done or (module := sys.modules.get(module_name)) is None:
            continue
        done.add(decoder)
        owner = getattr(module, owner_name, None) if owner_name else module
        function = getattr(owner, function_name, None)
        if callable(function):
            with suppress(AttributeError, TypeError):  # an extension module may not allow it
                setattr(owner, function_name, _timed_decoder(function))


def _timed_decoder(function: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        clock = clock_of_thread()
        before, started = clock.decode_seconds, time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:  # one decoder may call another: only the outer one counts
            clock.decode_seconds = before + time.thread_time() - started

    timed.__wrapped__ = function  # type: ignore[attr-defined]
    return timed


class WorkerDiary:
    """Written by a loader worker: a line for each batch, and now and then the lines that it spends its time in."""

    def __init__(self, run: Path, loader: str, worker: int) -> None:
        self._path = run / FOLDER / f"fetch-{loader}-{worker}-{os.getpid()}.jsonl"
        self._lines: list[str] = []
        self._written = 0.0
        self._sampler = LineSampler(threading.get_ident(), lambda: "loading")
        self._sampler.start()

    def note(self, times: BatchTimes, start: float) -> None:
        stages = split_stages(*times)
        self._lines.append(event("batch", {"start": start, **{name: round(s, 7) for name, s in stages.items()}}))
        now = time.perf_counter()
        if now - self._written > _WRITE_SECONDS:
            self._written = now
            self._lines.append(event("lines", self._sampler.counts()))
            append_lines(self._path, self._lines)
            self._lines = []
