"""The ledger of one process: what the hooks see becomes exclusive spans of the training thread, and steps.

Every second between two hooks belongs to `other`, the script's own code. Hooks call in from the script's own frames,
so nothing here may raise: what fails is said once in the run, and the script goes on without a ledger.
"""

import functools
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flatout.recording.files import FOLDER, append_lines, claim_rank, event
from flatout.recording.loaders import LoaderUse, batch_samples, batch_shape, batch_size, loader_facts
from flatout.recording.steps import RecordedStep, StepBook
from flatout.timeline import Recorder

_TOTALS_SECONDS = 2.0
_WRITE_SECONDS = 0.25  # what a kill -9 may take with it
_FIRST_STEPS = 20  # each is written at once: a script that dies early leaves them all
_BACKWARDS_BY_HAND = 50  # without any optimizer's step: more are hardly ever accumulated
_MOST_HELD = 50_000  # lines of a process that does not train, before it stops keeping them
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """An error of ours ends the ledger, never the script."""

    @functools.wraps(method)
    def call(self: "ScriptLedger", *args: Any) -> Any:
        if not self.active:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            self.give_up(f"{method.__name__}: {type(error).__name__}: {error}")
            return None

    return call  # type: ignore[return-value]


class ScriptLedger:
    """Of the thread that trains. Only that thread calls the methods that begin and end something."""

    def __init__(self, run: Path, started: float | None = None) -> None:
        self.run = run
        self.recorder = Recorder(None).hold().open(started)
        self.book = StepBook()
        self.loaders: dict[tuple[int, int | None], LoaderUse] = {}
        self.thread = threading.get_ident()
        self.active = True
        self.inside = False
        """A module of the script is being called: the calls inside it belong to it."""
        self.rank: int | None = None
        self.told_rank: Callable[[], int | None] = lambda: None
        self.on_claim: Callable[[], dict[str, Any]] = dict
        """What the process says of itself once it trains."""
        self._events: deque[str | RecordedStep] = deque()  # steps become text when they are written
        self._attempt = 1
        self._writing = threading.Lock()
        self._written = 0.0
        self._fed_by: LoaderUse | None = None
        self._pass: tuple[int, int] | None = None
        self._epoch = -1
        self._validated = 0.0  # when the last event of a validation was over
        self._in_validation = False
        self._unsettled = True  # the start, or a validation, is open: the next hook of training ends it
        self._loader_trains = False
        self._optimizer_seen = False
        self._by_hand = False  # the script changes its weights itself: a step is a backward pass
        self._call_samples = 0
        self._told_totals = 0.0
        self._seen_training: set[int] = set()

    # ---- loaders

    @_guarded
    def loader_use(self, loader: Any) -> LoaderUse:
        key = (id(getattr(loader, "dataset", None)), batch_size(loader))
        if key not in self.loaders:
            self.loaders[key] = LoaderUse(len(self.loaders), {})
        use = self.loaders[key]
        use.begin_pass()
        facts = loader_facts(loader)
        if facts != use.facts:
            use.facts = facts
            self._tell_loader(use)
        return use

    def _tell_loader(self, use: LoaderUse) -> None:
        self.tell("loader", {"number": use.number, **use.facts, "shape": use.shape})

    @_guarded
    def begin_fetch(self, use: LoaderUse, grad_enabled: bool) -> None:
        if use.feeds_validation(grad_enabled):
            self._begin_validation()
        else:
            self.book.begin(self._begin("data_wait"))

    @_guarded
    def end_fetch(self, use: LoaderUse, batch: Any, found: bool) -> None:
        """`found`: there was a batch, or else the epoch is over."""
        if self._in_validation:
            self._validated = time.perf_counter()
            if not found:
                self._end_validation()
        else:
            self.book.work.wait_seconds += self._end()
        if not found:
            return
        shape = batch_shape(batch)
        if shape and not use.shape:
            use.shape = tuple(map(int, shape))
            self._tell_loader(use)
        use.take(int(shape[0]) if shape else 0, self.book.done + 1, self._in_validation)
        self._fed_by = use

    @_guarded
    def fetched_here(self, stages: dict[str, float], start: float) -> None:
        """A batch that the training thread itself prepared."""
        prefix = "val_" if self._in_validation else ""
        for name, seconds in stages.items():
            if not seconds:
                continue
            self.recorder.lane("loader", prefix + name, start, seconds, self.book.done)

    # ---- computing

    @_guarded
    def begin_call(self, module: Any, arguments: Any, grad_enabled: bool) -> None:
        self.inside = True
        trains = bool(getattr(module, "training", True))
        known = id(module) in self._seen_training
        if trains and not known and grad_enabled:
            self._seen_training.add(id(module))
        fed = self._fed_by is not None and self._fed_by.trained and self._fed_by.passed_by <= 1 and grad_enabled
        # without any loader, a model in training mode acts (reinforcement learning): no validation
        held_out = not grad_enabled and not self._feeds_training() and (bool(self.loaders) or not trains)
        if held_out or (not trains and known and not fed):
            self._begin_validation()
        else:
            self.book.begin(self._begin("forward"))
            if grad_enabled and not self._loader_trains and not self._call_samples:  # its loss may be called next
                self._call_samples = batch_samples(arguments)

    def _feeds_training(self) -> bool:
        """The newest batch is one of training: a pass without gradients over it is a teacher's, or bookkeeping."""
        use = self._fed_by
        return use is not None and use.trained and use.passed_by == 1 and not self._in_validation

    @_guarded
    def end_call(self) -> None:
        self.inside = False
        if self._in_validation:
            self._validated = time.perf_counter()
        else:
            self._end()

    @_guarded
    def begin_backward(self, loss: float | None) -> None:
        self.book.begin(self._begin("backward"))
        work, use = self.book.work, self._fed_by
        work.backwards += 1
        if loss is not None:
            work.losses.append(loss)
        for each in self.loaders.values():
            if each.may_train(each is use):
                self._train_on(each)
        if use is not None and use.trained:
            use.passed_by = 0
            if self._pass != (use.number, use.epoch):  # the first batch of a pass over training data
                self._pass = use.number, use.epoch
                self._epoch += 1
        if not self._loader_trains:
            work.samples += self._call_samples
            self._call_samples = 0

    def _train_on(self, use: LoaderUse) -> None:
        self.book.work.samples += use.take_trained()
        self.book.work.fetches += 1
        if not use.trained:
            use.trained = self._loader_trains = True
            self.tell("trained", use.number)

    @_guarded
    def end_backward(self, computed: float | None, count_steps: bool = True) -> None:
        """`computed` is when the gradients were done (of time.perf_counter), where others were waited for after."""
        if computed is not None and self.recorder.depth > 1 and computed > self.recorder.since:
            self.recorder.switch("communication", computed)
        self._end()
        if count_steps and not self._optimizer_seen:
            self._by_hand = self._by_hand or self.book.work.backwards >= _BACKWARDS_BY_HAND
            if self._by_hand:
                self._count_step(0, None)

    @_guarded
    def copied(self, since: float) -> None:
        """Something went to another device, from `since` (of time.perf_counter) until now."""
        if self.recorder.depth == 1 and self.recorder.current == "other":
            self.recorder.switch("copy", since)
            self.recorder.switch("other")

    @_guarded
    def begin_optimizer(self) -> None:
        if self.recorder.current == "optimizer":
            self._end()  # of a step that raised: its end was never told
        self._begin("optimizer")

    @_guarded
    def end_optimizer(self, optimizer: int, learning_rate: float | None) -> None:
        self._end()
        self._optimizer_seen = True
        for each in self.loaders.values():
            if len(each.waiting) > 1:
                self.book.work.samples += each.take_left_behind()
        self._count_step(optimizer, learning_rate)

    @_guarded
    def end_step(self, samples: int | None) -> None:
        """A step that the script says itself, of so many samples where it knows."""
        self._settle()
        self.book.begin(self.recorder.since)
        if samples is not None:
            self.book.work.samples = samples
        self._count_step(0, None)

    def _count_step(self, optimizer: int, learning_rate: float | None) -> None:
        if self.rank is None:
            self._claim()
            if not self.active:
                return
        use = self._fed_by
        index = self.book.done if use is None else max(0, use.batch_index)
        now = time.perf_counter()
        step = self.book.optimizer_done(optimizer, now, max(0, self._epoch), index, learning_rate)
        self.recorder.step = self.book.done
        if self.recorder.depth == 1:
            self.recorder.switch("other")  # what a kill leaves of it is at most a step's
        if step is not None:
            self._events.append(step)
        if now - self._written > _WRITE_SECONDS or self.book.done <= _FIRST_STEPS:
            self._written = now
            self.recorder.flush()
            self.write_events()
        if now - self._told_totals > _TOTALS_SECONDS:
            self._told_totals = now
            self.tell("totals", {"parts": self.recorder.totals(), "wall_seconds": self.recorder.wall_seconds()})

    @_guarded
    def begin_part(self, name: str) -> None:
        self._begin(name)

    @_guarded
    def end_part(self, name: str) -> None:
        seconds = self._end()
        if name == "checkpoint":
            self.book.set_aside(seconds)

    # ---- telling

    def tell(self, kind: str, value: Any) -> None:
        """An event for the run's files; any thread may call it."""
        if self.rank is not None or len(self._events) < _MOST_HELD:
            self._events.append(event(kind, value))

    def missing(self, what: str) -> None:
        self.tell("missing", what)

    def give_up(self, why: str) -> None:
        """Hooks stay where they are and do nothing any more."""
        self.active = False
        self.missing(f"the ledger ended after step {self.recorder.step}: {why}")

    def write_events(self) -> None:
        """Hand over what was told so far; nothing where another thread does so just now."""
        if self.rank is None or not self._events or not self._writing.acquire(blocking=False):
            return
        try:
            append_lines(self.run / FOLDER / f"rank{self.rank}.jsonl", self._take_lines())
        finally:
            self._writing.release()

    def _take_lines(self) -> list[str]:
        told = [self._events.popleft() for _ in range(len(self._events))]
        origin_unix = time.time() - time.perf_counter()
        return [each if isinstance(each, str) else self._step_line(each, origin_unix) for each in told]

    def close(self, ended: dict[str, Any]) -> None:
        """When the process ends by itself."""
        trained = self.rank is not None
        if not trained and ended.get("cause") is None and not self.loaders and not self._seen_training:
            return  # a launcher, a tool: nothing of a training was seen here
        if not trained and self.told_rank() is None:
            self._events.append(event("end", ended))
            append_lines(self.run / FOLDER / f"{os.getpid()}.jsonl", self._take_lines())
            return
        if not trained:
            self._claim()
        if not self.active and self.rank is None:
            return
        if (last := self.book.take_last()) is not None:
            self._events.append(last)
        self._settle()
        self.recorder.close()
        self.tell("totals", {"parts": self.recorder.totals(), "wall_seconds": self.recorder.wall_seconds()})
        self.tell("end", ended)
        self.write_events()

    def _claim(self) -> None:
        claimed = claim_rank(self.run, self.told_rank())
        if claimed is None:
            self._yield_rank()
            return
        self.rank, self._attempt = claimed
        self.recorder.keep_at(self.run / "spans" / f"rank{self.rank}.jsonl", self._attempt)
        self.thread = threading.get_ident()
        self._events.appendleft(event("process", {"attempt": self._attempt, "pid": os.getpid(), **self.on_claim()}))
        self.write_events()

    def _yield_rank(self) -> None:
        self.active = False
        told = f"process {os.getpid()} trains beside rank 0, outside of a process group: only rank 0 is recorded\n"
        (self.run / FOLDER / f"missing-{os.getpid()}.txt").write_text(told)

    def _step_line(self, step: RecordedStep, origin_unix: float) -> str:
        """One of `event`; written out because it is told of every step."""
        work = step.work
        return (
            f'{{"step": {{"attempt": {self._attempt}, "epoch": {step.epoch}, "batch_index": {step.batch_index}, '
            f'"samples": {work.samples}, "loss": {_as_json(step.loss)}, '
            f'"learning_rate": {_as_json(step.learning_rate)}, "step_seconds": {step.seconds:.7f}, '
            f'"data_wait_seconds": {work.wait_seconds:.7f}, "time_unix": {origin_unix + step.end:.3f}, '
            f'"microbatches": {work.fetches or work.backwards}}}}}\n'
        )

    # ---- spans

    def _begin(self, name: str) -> float:
        """A hook of training, or of a save: whatever validation there was is over. Returns the time of it."""
        if self._unsettled:
            self._settle()
        return self.recorder.begin(name)

    def _end(self) -> float:
        """Seconds of the span that ended."""
        return self.recorder.end() if self.recorder.depth > 1 else 0.0

    def _settle(self) -> None:
        """The start and a validation end where training begins or goes on."""
        if self.recorder.depth == 1:
            if self._in_validation:
                self._end_validation()
            elif self.recorder.current == "startup":
                self.recorder.switch("other")
            self._unsettled = False

    def _begin_validation(self) -> None:
        """All from the first batch without gradients to the last is one span, the script's code in between too."""
        if not self._in_validation and self.recorder.depth == 1:
            self._in_validation = self._unsettled = True
            if self._fed_by is not None:
                self._fed_by.validates = True
            self.recorder.switch("validation")
        elif not self._in_validation:
            self._begin("forward")

    def _end_validation(self) -> None:
        """Since its last event: what came after that was something else."""
        self._in_validation = False
        self.book.set_aside(max(0.0, self._validated - self.recorder.since))
        self.recorder.switch("other", self._validated)


def _as_json(value: float | None) -> str:
    if value is None:
        return "null"
    return float.__repr__(float(value)) if math.isfinite(value) else json.dumps(float(value))
