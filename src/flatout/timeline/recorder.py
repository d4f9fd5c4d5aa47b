"""Cuts the main thread of one rank into exclusive spans that add up to the wall clock.

`with recorder.span("forward"):` owns the time until it ends, less what inner spans own. What no span owns is
`unattributed`. Each finished span is a line of the rank's JSONL file, so a killed run keeps its ledger.

What others do meanwhile (loader workers, the network, the device) goes to lanes beside it, and adds up to nothing.
"""

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from flatout.timeline.core_wait import CoreWait
from flatout.timeline.startup import process_age_seconds

PARTS = (
    "startup",
    "data_wait",
    "copy",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "validation",
    "checkpoint",
    "other",
    "unattributed",
)
_FLUSH_SECONDS = 1.0
_DETAILED_LINES = 100_000  # of an attempt; after them, short spans of the same name are one line for each flush
_SHORT_SECONDS = 0.1
LOOK_SECONDS = 0.002  # a stretch that is shorter is not worth asking the kernel whether it waited for a core
_WAITED_SECONDS = 0.0001  # what is less is not written
_ON_DEVICE = frozenset({"copy", "forward", "backward", "optimizer"})
_Open = list[Any]  # name, start, seconds of the spans inside it, seconds for which it was ready and had no core
_Line = str | tuple[str, str, int, float, float] | tuple[str, int, float, float, float, float, int]


def _ends_in_a_torn_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class DeviceClock(Protocol):
    """Times what was queued on a device that works while the host goes on."""

    def mark(self, name: str) -> None:
        """The work queued since the last mark is `name`."""
        ...

    def shares(self) -> Mapping[str, float]:
        """Device seconds of each name since the last call, `idle` among them; the device has nothing left to do."""
        ...


class Span:
    """One reusable context manager per name: entering costs two clock reads and no allocation."""

    def __init__(self, recorder: "Recorder", name: str) -> None:
        self._recorder = recorder
        self._name = name

    def __enter__(self) -> None:
        self._recorder.begin(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.end(failed=kind is not None)


class Recorder:
    """The ledger of one attempt on one rank. Durations are monotonic; only the header has a wall-clock time."""

    def __init__(self, path: Path | None, attempt: int = 1) -> None:
        self.step = 0  # written with every span; the loop keeps it current
        self._path = path
        self._attempt = attempt
        self._file: IO[str] | None = None
        # appended to by any thread. They become text when they are flushed: many at once cost half as much
        self._lines: deque[_Line] = deque()
        self._written = 0
        self._short: dict[str, tuple[int, float, float, float, float]] = {}  # count, start, seconds, own, waited
        self._spans: dict[str, Span] = {}
        self._stack: list[_Open] = []
        self._totals = dict.fromkeys(PARTS, 0.0)  # of spans that ended
        self.core_wait: CoreWait | None = None
        """Of the thread that opened the ledger, until it is closed."""
        self._waited_before = 0.0
        self._looked = 0.0
        self._origin = time.perf_counter()
        self._mark = self._origin  # when the last span that was inside no other ended
        self._flushed = self._origin
        self._holding = False  # until it is known where the file belongs
        self.device_clock: DeviceClock | None = None
        self.device_seconds: dict[str, float] = {}

    def open(self, started: float | None = None) -> "Recorder":
        """Start the ledger at the start of the process, so that interpreter and imports are counted as startup; or at
        `started` (of time.perf_counter) where the process did other things before."""
        age_seconds = process_age_seconds() if started is None else time.perf_counter() - started
        age_seconds = max(0.0, age_seconds)
        self._origin = self._mark = time.perf_counter() - age_seconds
        self._open_file()
        self._stack.append(["startup", self._origin, 0.0, 0.0])
        self.core_wait = CoreWait()
        return self

    def _open_file(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        torn = _ends_in_a_torn_line(self._path)
        self._file = self._path.open("a+", encoding="utf-8")  # read again only by follow()
        if torn:  # by a kill: the header must not become its end
            self._file.write("\n")
        header: dict[str, Any] = {"attempt": self._attempt, "started_unix": time.time() - self.wall_seconds()}
        self._file.write(json.dumps(header) + "\n")
        self._file.flush()

    def hold(self) -> "Recorder":
        """Keep lines in memory until `keep_at` says where they belong. Before `open`."""
        self._holding = True
        return self

    def keep_at(self, path: Path, attempt: int) -> None:
        """The file of a ledger that was held, from its start on."""
        self._path, self._attempt, self._holding = path, attempt, False
        self._open_file()

    def follow(self, path: Path) -> None:
        """To be found at `path` from now on, with what was written so far, even if the file was deleted meanwhile."""
        if self._file is not None and not path.exists():
            self._file.seek(0)
            kept = self._file.read()
            self._file.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
            self._file.write(kept)
        self._path = path

    def end_startup(self) -> None:
        """Called once before the first batch is asked for."""
        if self._stack and self._stack[0][0] == "startup":
            self.end()

    def span(self, name: str) -> Span:
        if name not in self._spans:
            self._spans[name] = Span(self, name)
        return self._spans[name]

    def begin(self, name: str, at: float | None = None) -> None:
        """As entering `span(name)`, for what begins and ends in two functions, now or at a moment that is over."""
        if name == "copy" and self.device_clock is not None:
            self.device_clock.mark("idle")
        now = self._now() if at is None else at
        if not self._stack:
            self._totals["unattributed"] += now - self._mark
        self._stack.append([name, now, 0.0, 0.0])

    def end(self, at: float | None = None, failed: bool = False) -> float:
        """The innermost span is over, now or since `at`; its seconds. `failed`: an error is on its way. The device may
        be what failed, and asking it would hide the cause."""
        now = self._now() if at is None else at
        stack = self._stack
        name, start, inner, waited = stack.pop()
        seconds: float = now - start
        own = seconds - inner
        if stack:
            stack[-1][2] += seconds
        else:
            self._mark = now
        if name == "device_wait":
            self._split_wait(start, own, {} if failed else self._device_shares())
        else:
            self._totals[name] = self._totals.get(name, 0.0) + own
            if self._written < _DETAILED_LINES:  # as `_note`, which a call would make dearer
                self._lines.append((name, self.step, start, seconds, own, waited if waited < own else own, 1))
            else:
                self._note(name, start, seconds, own, min(waited, own))
            if self.device_clock is not None and name in _ON_DEVICE and not failed:
                self.device_clock.mark(name)
        if now - self._flushed > _FLUSH_SECONDS:
            self.flush()
            self._flushed = now
        return seconds

    def end_inner(self, at: float) -> float:
        """As `end`, where the innermost span is not the outermost, too; else nothing is over."""
        return self.end(at) if len(self._stack) > 1 else 0.0

    def switch(self, name: str, at: float | None = None) -> None:
        """The innermost span is over, now or since `at`, and `name` began at that moment."""
        now = self._now() if at is None else at
        self.end(now)
        self._stack.append([name, now, 0.0, 0.0])

    @property
    def depth(self) -> int:
        """Spans that are open."""
        return len(self._stack)

    @property
    def since(self) -> float:
        """When the innermost span began, of time.perf_counter; any thread may ask."""
        stack = self._stack
        return stack[-1][1] if stack else self._mark

    def device_wait(self) -> Span:
        """For reading a value the device still works on: the wait is shared out over the work it did."""
        return self.span("optimizer" if self.device_clock is None else "device_wait")

    @property
    def current(self) -> str:
        """The innermost span of this moment; any thread may ask."""
        stack = self._stack
        return stack[-1][0] if stack else "unattributed"

    def lane(self, lane: str, name: str, start: float, seconds: float, step: int | None = None) -> None:
        """Work done in parallel from `start` (of time.perf_counter) on, by default after the step of now. Any thread
        may call it."""
        self._lines.append((lane, name, self.step if step is None else step, start, seconds))

    def value(self, lane: str, name: str, value: float) -> None:
        """A reading of now, such as the depth of a queue."""
        now = time.perf_counter() - self._origin
        self._lines.append(f'{{"lane":"{lane}","name":"{name}","start":{now:.6f},"value":{value:g}}}\n')

    def wall_seconds(self) -> float:
        return time.perf_counter() - self._origin

    def totals(self) -> dict[str, float]:
        """Exclusive seconds of every part up to now; they add up to wall_seconds()."""
        totals, end = dict(self._totals), time.perf_counter()
        for name, start, inner, _ in reversed(self._stack):
            totals[name] = totals.get(name, 0.0) + end - start - inner
            end = start
        if not self._stack:
            totals["unattributed"] += end - self._mark
        return totals

    def close(self) -> None:
        while self._stack:
            self.end()
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.core_wait is not None:
            self.core_wait.close()
            self.core_wait = None

    def _now(self) -> float:
        """Of time.perf_counter; every few milliseconds the kernel is asked, too."""
        now = time.perf_counter()
        if self.core_wait is not None and now - self._looked > LOOK_SECONDS:
            self._looked = now
            self.waited(self.core_wait.seconds())
        return now

    def waited(self, seconds: float) -> None:
        """So long was the thread without a core until now: what is new of it is the innermost span's."""
        if self._stack:
            self._stack[-1][3] += seconds - self._waited_before
        self._waited_before = seconds

    def _device_shares(self) -> Mapping[str, float]:
        assert self.device_clock is not None
        shares = self.device_clock.shares()
        for name, device_seconds in shares.items():
            self.device_seconds[name] = self.device_seconds.get(name, 0.0) + device_seconds
        return shares

    def _split_wait(self, start: float, seconds: float, shares: Mapping[str, float]) -> None:
        busy = {name: value for name, value in shares.items() if name != "idle"} or {"optimizer": 1.0}
        total = sum(busy.values()) or 1.0
        for name, device_seconds in busy.items():
            part = seconds * device_seconds / total
            self._totals[name] += part
            self._note(name, start, part, part, 0.0)
            start += part

    def _note(self, name: str, start: float, seconds: float, own: float, waited: float) -> None:
        """A line for each span; in a long run, one line a second for the short spans of a name."""
        if self._written < _DETAILED_LINES or seconds >= _SHORT_SECONDS:
            self._lines.append((name, self.step, start, seconds, own, waited, 1))
            return
        count, first, summed, owned, delayed = self._short.get(name, (0, start, 0.0, 0.0, 0.0))
        self._short[name] = count + 1, first, summed + seconds, owned + own, delayed + waited

    def _as_text(self, lines: Iterable[_Line]) -> str:
        texts, origin = [], self._origin
        for line in lines:
            if isinstance(line, str):
                texts.append(line)
                continue
            if len(line) == 5:
                lane, name, step, start, seconds = line
                before, after = f'"lane":"{lane}",', ""
            else:
                name, step, start, seconds, own, waited, count = line
                before, after = "", "" if own == seconds else f',"own":{own:.6f}'
                if waited >= _WAITED_SECONDS:
                    after += f',"core_wait":{waited:.6f}'
                if count > 1:
                    after += f',"count":{count}'
            at = f'"step":{step},"start":{start - origin:.6f}'
            texts.append(f'{{{before}"name":"{name}",{at},"seconds":{seconds:.6f}{after}}}\n')
        return "".join(texts)

    def flush(self) -> None:
        """Hand what is finished to the kernel: a kill -9 after this loses none of it."""
        if self._holding:
            return
        for name, (count, start, seconds, own, waited) in self._short.items():
            self._lines.append((name, self.step, start, seconds, own, waited, count))
        self._short.clear()
        waiting = [self._lines.popleft() for _ in range(len(self._lines))]
        self._written += len(waiting)
        if self._file is not None:
            # one call: each costs a file that can be read a reset of its decoder
            self._file.write(self._as_text(waiting))
            self._file.flush()
