"""Every rank says every second what it is doing; one that falls silent, or says that it failed, ends the others too.

A thread of its own, because the main thread may be inside an exchange that never ends. It keeps the others' last words
(span, step, stack of the main thread), so that the cause can name them even where a rank cannot say anything any more.
"""

import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed.distributed_c10d import Store

from flatout.engine.parallel.place import RankPlace
from flatout.timeline import Recorder
from flatout.timeline.stacks import frames_of_others

_FRAMES = 6
_GRACE_SECONDS = 5.0  # for the main thread to notice by itself that another rank failed


@dataclass
class Heard:
    """The last sign of life of one rank."""

    words: dict[str, Any]
    at: float  # monotonic, by this rank's clock

    def __str__(self) -> str:
        said = self.words
        if not said:
            return "it never said anything"
        where = f"in {said['span']} of step {said['step']}" if said["step"] else f"in {said['span']}"
        return f"process {said['pid']} on {said['host']}, last seen {where} at {said['stack']}"


class Watchdog:
    """Publishes this rank's signs of life in the store and looks for those of the ranks it watches."""

    def __init__(
        self, store: Store, place: RankPlace, recorder: Recorder, silence_seconds: float, end: Callable[[str], None]
    ) -> None:
        self._store = store
        self._place = place
        self._recorder = recorder
        self._silence_seconds = silence_seconds
        self._interval_seconds = min(1.0, silence_seconds / 5)
        self._end = end  # told the cause from the watchdog's thread, before the process is ended
        # everyone watches rank 0 and rank 0 watches everyone: no rank is unobserved, and the store has little to do
        watched = range(1, place.world_size) if place.rank == 0 else [0]
        self._heard = {rank: Heard({}, time.monotonic()) for rank in watched}
        self._closing = threading.Event()
        self._lock = threading.Lock()  # of the store's connection
        self._main = threading.main_thread().ident or 0
        self._beats = 0
        self.gone: set[int] = set()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """This rank ends in good order: its silence from now on means nothing."""
        self._closing.set()
        self._thread.join(self._silence_seconds)
        self._beat(done=True)

    def publish_failure(self, cause: str) -> None:
        """Tell the others why this rank ends."""
        self._closing.set()
        if 0 in self.gone and not self._place.launcher_keeps_store:
            return  # the store went with it
        words = {"rank": self._place.rank, "host": self._place.host, "cause": cause}
        with self._lock:
            self._store.set("failure", json.dumps(words))

    def blame(self) -> str | None:
        """Why an exchange broke: what a rank said that failed, or who is silent. Takes a few beats."""
        self._closing.set()  # from here on the main thread says what there is to say
        try:
            self._listen()  # what was said before
            began = time.monotonic()
            while time.monotonic() < began + 2.5 * self._interval_seconds:
                self._listen()
                if failure := self._failure():
                    return failure
                time.sleep(self._interval_seconds / 4)
        except (RuntimeError, OSError) as error:
            return self._store_is_gone(error)
        silent = {rank: heard for rank, heard in self._heard.items() if heard.at < began and not _done(heard)}
        self.gone.update(silent)
        return "; ".join(f"rank {rank} is gone: {heard}" for rank, heard in silent.items()) or None

    def _watch(self) -> None:
        pause_seconds = 0.0
        while not self._closing.wait(pause_seconds):
            pause_seconds = self._interval_seconds
            try:
                self._beat()
                self._listen()
                cause = self._failure() or self._silence()
            except (RuntimeError, OSError) as error:
                cause = self._store_is_gone(error)
            if cause is not None and not self._closing.wait(0 if self.gone else _GRACE_SECONDS):
                self._end(cause)
                os._exit(1)

    def _beat(self, done: bool = False) -> None:
        self._beats += 1
        words = {
            "beat": self._beats,
            "done": done,
            "host": self._place.host,
            "pid": os.getpid(),
            "step": self._recorder.step,
            "span": self._recorder.current,
            "stack": stack_of(self._main),
        }
        with self._lock:
            self._store.set(f"beat/{self._place.rank}", json.dumps(words))

    def _listen(self) -> None:
        for rank, heard in self._heard.items():
            key = f"beat/{rank}"
            with self._lock:
                words = json.loads(self._store.get(key)) if self._store.check([key]) else {}
            if words.get("beat") != heard.words.get("beat"):
                self._heard[rank] = Heard(words, time.monotonic())

    def _failure(self) -> str | None:
        with self._lock:
            said = json.loads(self._store.get("failure")) if self._store.check(["failure"]) else None
        return None if said is None else f"rank {said['rank']} on {said['host']} failed: {said['cause']}"

    def _store_is_gone(self, error: Exception) -> str:
        if 0 in self._heard and not self._place.launcher_keeps_store:
            self.gone.add(0)
            return f"rank 0 is gone, and its store with it: {self._heard[0]}"
        address = f"{self._place.master_address}:{self._place.master_port}"
        return f"the store of the launcher at {address} is gone ({str(error).splitlines()[0]})"

    def _silence(self) -> str | None:
        now = time.monotonic()
        for rank, heard in self._heard.items():
            if now - heard.at > self._silence_seconds and not _done(heard):
                self.gone.add(rank)
                return (
                    f"rank {rank} was not heard of for {now - heard.at:.0f} s (parallel.silence_seconds = "
                    f"{self._silence_seconds:g}): {heard}"
                )
        return None


def _done(heard: Heard) -> bool:
    return bool(heard.words.get("done"))


def stack_of(thread: int) -> str:
    """The innermost call of a thread and those of ours around it, innermost first."""
    calls = traceback.extract_stack(frames_of_others().get(thread))[::-1]
    shown = [call for number, call in enumerate(calls) if number == 0 or "flatout" in call.filename]
    return " < ".join(f"{os.path.basename(call.filename)}:{call.lineno} {call.name}" for call in shown[:_FRAMES])
