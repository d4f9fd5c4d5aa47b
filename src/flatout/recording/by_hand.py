"""The ledger inside one's own loop, where `flatout record` is not wanted: in a notebook, or to name parts by hand."""

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from weakref import WeakSet

from flatout.errors import ConfigError
from flatout.recording.activation import Recording, how_it_ended, told_error
from flatout.recording.collecting import Collector
from flatout.recording.ledger import ScriptLedger
from flatout.recording.loaders import LoaderUse, loader_facts, shape_at_hand
from flatout.runs.directory import RunDirectory
from flatout.timeline import PARTS

_Batch = TypeVar("_Batch")
_UPDATE_SECONDS = 2.0
_OPEN: "WeakSet[ScriptLedger]" = WeakSet()


def _leave_to_parent() -> None:
    for ledger in _OPEN:
        ledger.abandon()


os.register_at_fork(after_in_child=_leave_to_parent)


class HandLedger:
    """What `with flatout.recording(...) as ledger` gives. Forward, backward, optimizer, DataLoader and torch.save are
    seen by the same hooks as under `flatout record`, for as long as the block lasts; steps are what `step` says."""

    def __init__(self, directory: RunDirectory, collector: Collector) -> None:
        self._directory = directory
        self._collector = collector
        self._recording = Recording(directory.root, 0.0, started=time.perf_counter())
        self._recording.also.append((_UPDATE_SECONDS, self._update))
        self._ledger = self._recording.ledger
        self._closing = threading.Lock()
        self._closed = False

    def __enter__(self) -> "HandLedger":
        self._collector.mark_start()
        _OPEN.add(self._ledger)
        self._recording.start()
        atexit.register(self._close_at_exit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None if error is None else told_error(error), isinstance(error, KeyboardInterrupt))

    def _close(self, cause: str | None, interrupted: bool) -> None:
        atexit.unregister(self._close_at_exit)
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._recording.finish({"cause": cause})
        self._recording.hooks.remove()
        self._collector.mark_end()
        status = "stopped" if interrupted else "completed" if cause is None else "failed"
        try:
            self._collector.end(status, "interrupted" if interrupted else cause)
        finally:
            self._directory.unlock()

    def _close_at_exit(self) -> None:
        """Where nobody did: a trainer that tells its callbacks of no failure."""
        told = how_it_ended()
        self._close(told["cause"], bool(told.get("interrupted")))

    def _update(self) -> None:
        with self._closing:
            if not self._closed:
                self._collector.update()

    @property
    def directory(self) -> Path:
        return self._directory.root

    def batches(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """The batches of any iterable; waiting for each is `data_wait`. A DataLoader is seen without this, too."""
        if hasattr(loader, "dataset") and hasattr(loader, "num_workers"):  # a DataLoader has its own hooks
            yield from loader
            return
        ledger = self._ledger
        ledger.catch_up()
        use = ledger.loaders.setdefault((id(loader), None), LoaderUse(len(ledger.loaders), loader_facts(loader)))
        use.begin_pass()
        iterator = iter(loader)
        while True:
            ledger.saw(ScriptLedger.begin_fetch, use, True)
            shape: tuple[int, ...] = ()
            found = False
            try:
                batch = next(iterator)
                shape, found = shape_at_hand(batch), True
            except StopIteration:
                return
            finally:
                ledger.saw(ScriptLedger.end_fetch, use, shape, found)
            yield batch

    @contextmanager
    def step(self, samples: int | None = None) -> Iterator[None]:
        """One step of training. Where steps are said by hand, an optimizer's own steps are only parts of them."""
        self._recording.hooks.count_steps = False
        if self._ledger.events.rank is None:
            self._ledger.thread = threading.get_ident()  # who steps is who trains
        yield
        self._ledger.saw(ScriptLedger.end_step, samples)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time with a name of its own, inside the ledger's `other`, or one of the ledger's parts by its name."""
        if not name.isidentifier():
            raise ConfigError(f"a span is named {name!r}; use a word of letters, digits and _")
        part = name if name in PARTS else "other"
        self._ledger.saw(ScriptLedger.begin_part, part)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._ledger.saw(ScriptLedger.end_part, part)
            self._ledger.recorder.lane("script", name, started, time.perf_counter() - started)

    def log(self, **values: float) -> None:
        """Figures of now: loss goes to the step, val_loss, top1 and others to the epoch."""
        told = {name: float(value) for name, value in values.items()}
        if "loss" in told:
            self._ledger.saw(ScriptLedger.take_loss, told["loss"])
        self._ledger.catch_up()  # the figures are of the newest step
        self._ledger.events.tell("log", told)
