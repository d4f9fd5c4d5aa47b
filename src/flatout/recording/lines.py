"""Which lines of the script the time goes to: a thread looks at another one's stack twenty times a second."""

import os
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from flatout.timeline.stacks import frames_of_others

SAMPLE_SECONDS = 0.05  # one look costs some 20 microseconds: 0.04 % of a core
_LIBRARIES = tuple(
    {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(name))}
)
_OURS = __file__.rsplit("/", 2)[0]
_MOST_LINES = 40
_COMPUTES = tuple(
    os.sep.join(("", "torch", *place))
    for place in (
        ("nn", "functional.py"),
        ("nn", "modules", ""),
        ("optim", ""),
        ("functional.py",),
        ("autograd", ""),
        ("_functorch", ""),
    )
)
_WAITS = tuple(
    os.path.join(sysconfig.get_paths()["stdlib"], *place)
    for place in (("threading.py",), ("queue.py",), ("multiprocessing", ""), ("concurrent", ""), ("selectors.py",))
)
"""Where a thread is that waits for another one, or for a process."""


def is_script(filename: str) -> bool:
    """Code of the user's own: no library, nothing frozen, none of ours."""
    return not (
        filename.startswith(("<frozen", _OURS, *_LIBRARIES))
        or "site-packages" in filename
        or "dist-packages" in filename
    )


class LineSampler:
    """Counts, for each part of the ledger, the innermost line that belongs to the script."""

    def __init__(self, thread: int, part: Callable[[], str]) -> None:
        self.thread = thread
        self._part = part
        self._counts: Counter[tuple[str, str, int, str]] = Counter()
        self._is_script: dict[str, bool] = {}
        self._every: list[tuple[float, Callable[[], None]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flatout-lines", daemon=True)
        self.where: str | None = None
        """file:line that was seen last."""

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Called in the sampler's thread; before `start`."""
        self._every.append((seconds, action))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def counts(self) -> list[list[Any]]:
        """[part, file, line, function, samples], most first."""
        most = Counter(dict(self._counts)).most_common(_MOST_LINES)
        return [[*key, samples] for key, samples in most]

    def _run(self) -> None:
        due = [time.monotonic() + seconds for seconds, _ in self._every]
        while not self._over.wait(SAMPLE_SECONDS):
            with suppress(Exception):  # the script is worth more than a sample of it
                self._sample()
            now = time.monotonic()
            for place, (seconds, action) in enumerate(self._every):
                if now >= due[place]:
                    due[place] = now + seconds
                    with suppress(Exception):
                        action()

    def _sample(self) -> None:
        """A line of the script that is inside a function of torch that computes (a loss, zero_grad) is counted apart
        from what the script does itself; so is one that waits for others, with what those do meanwhile (beside)."""
        frames = frames_of_others()
        frame = frames.pop(self.thread, None)
        found = self._script_frame(frame)
        if found is not None and frame is not None:
            part, innermost = self._part(), frame.f_code.co_filename
            if part == "other" and any(place in innermost for place in _COMPUTES):
                part = "other_torch"
            elif part == "other" and innermost.startswith(_WAITS):
                part = "other_waits"
                for each in map(self._script_frame, frames.values()):
                    self._count("beside", each)
            self._count(part, found)
            self.where = f"{found.f_code.co_filename}:{found.f_lineno}"

    def _count(self, part: str, frame: FrameType | None) -> None:
        if frame is not None:
            self._counts[part, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name] += 1

    def _script_frame(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None:
            name = frame.f_code.co_filename
            known = self._is_script.get(name)
            if known is None:
                known = self._is_script[name] = is_script(name)
            if known and frame.f_lineno:  # 0 is where generated code begins (a dataclass of a library)
                return frame
            frame = frame.f_back
        return None
