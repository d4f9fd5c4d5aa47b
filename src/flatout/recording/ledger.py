"""The ledger of one process: what the hooks see becomes exclusive spans of the training thread, and steps.

Every second between two hooks belongs to `other`, the script's own code. Hooks call in from the script's own frames,
so nothing here may raise: what fails is said once in the run, and the script goes on without a ledger.

While training goes its steady way, a hook only notes what it saw, and many steps are understood at once: amid the
script's own work, when nothing of the ledger is in the processor's caches, that would cost three times as much.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.recording.fetching import BatchTimes, split_stages
from flatout.recording.loaders import LoaderUse, use_of
from flatout.recording.steps import StepBook
from flatout.recording.telling import Telling
from flatout.timeline.recorder import LOOK_SECONDS, Recorder

_TOTALS_SECONDS = 2.0
_LATER_SECONDS = 0.05  # what is seen is understood by then, or at the next hook after
_WRITE_SECONDS = 0.2  # and that: what a kill -9 may take with it
_LEAST_SECONDS = 5e-7  # less is written as 0
_FIRST_STEPS = 20  # each is written at once: a script that dies early leaves them all
_BACKWARDS_BY_HAND = 50  # without any optimizer's step: more are hardly ever accumulated
_Seen = tuple[Callable[..., None], float, tuple[Any, ...]]  # a method of the ledger, when, and its arguments


class ScriptLedger:
    """Of the thread that trains. Only that thread has something to tell: `saw(ScriptLedger.begin_call, ...)`. What the
    methods that begin and end something do, they do for a moment `at` (of time.perf_counter) that is over."""

    def __init__(self, run: Path, started: float | None = None) -> None:
        self.events = Telling(run)
        self.recorder = Recorder(None).hold().open(started)
        self.book = StepBook()
        self.loaders: dict[tuple[int, int | None], LoaderUse] = {}
        self.thread = threading.get_ident()
        self.active = True
        self.inside = False
        """A module of the script is being called: the calls inside it belong to it."""
        self.loader_trains = False
        """Samples are those of a loader, not of what the model is called with."""
        self._seen: deque[_Seen] = deque()
        self._understanding = threading.RLock()
        self._in_order = True  # False while `_seen` is gone through
        self._due = 0.0  # when it has to be, of time.perf_counter
        self._newest = self._looked = 0.0
        self._written = 0.0
        self._fed_by: LoaderUse | None = None
        self._pass: tuple[int, int] | None = None
        self._epoch = -1
        self._validated = 0.0  # when the last event of a validation was over
        self._in_validation = False
        self._unsettled = True  # the start, or a validation, is open: the next hook of training ends it
        self._optimizer_seen = self._in_optimizer = False
        self._by_hand = False  # the script changes its weights itself: a step is a backward pass
        self._backward_seen = False  # of loss.backward(): gradients that are asked for beside it are parts of its step
        self._call_samples = 0
        self._parts: list[bool] = []  # that are open: whether each is a span of its own
        self._told_totals = 0.0
        self._seen_training: set[int] = set()

    # ---- seeing

    def saw(self, what: Callable[..., None], *args: Any) -> None:
        """`what(self, now, *args)`, now or a few milliseconds later. Only the training thread calls this."""
        now = time.perf_counter()
        if now - self._newest > LOOK_SECONDS or now - self._looked > _LATER_SECONDS:
            self._look(now)
        self._newest = now
        self._seen.append((what, now, args))
        if now > self._due:
            self.catch_up()

    def _look(self, now: float) -> None:
        """Whether it waited for a core: such a wait makes the stretch between two hooks a long one."""
        self._looked = now
        if (core_wait := self.recorder.core_wait) is not None:
            self._seen.append((ScriptLedger.waited, now, (core_wait.seconds(),)))

    def catch_up(self) -> None:
        """What was seen so far is in the ledger then. Any thread may call it."""
        if self.events.rank is None and threading.get_ident() != self.thread:
            return  # the training thread itself claims the rank; until then it keeps nothing for later
        with self._understanding:
            if not self._in_order:  # a handler of a signal, in the middle of this
                return
            self._in_order = False
            try:
                self._understand()
            finally:
                self._in_order = True

    def _understand(self) -> None:
        """An error of ours ends the ledger, never the script."""
        what: Any = None
        seen = self._seen
        try:
            while seen:
                what, at, args = seen.popleft()
                if self.active:
                    what(self, at, *args)
            steady = self.book.done > _FIRST_STEPS and not self._in_validation
            self._due = time.perf_counter() + _LATER_SECONDS if steady else 0.0
        except Exception as error:
            self.give_up(f"{what.__name__}: {type(error).__name__}: {error}")

    def part(self) -> str:
        """What the training thread does at this moment; any thread may ask."""
        try:
            what, at, args = self._seen[-1]
        except IndexError:
            return self.recorder.current
        if time.perf_counter() - at > _LATER_SECONDS:
            self.catch_up()
            return self.recorder.current
        if self._in_validation:
            return "validation"
        return str(args[0]) if what is ScriptLedger.begin_part else _BEGUN.get(what, "other")

    def waited(self, at: float, seconds: float) -> None:
        """For a core, since the thread began."""
        self.recorder.waited(seconds)

    # ---- loaders

    def loader_use(self, loader: Any) -> LoaderUse | None:
        """Called by the training thread before it asks for the first batch."""
        self.catch_up()
        try:
            return self._loader_use(loader) if self.active else None
        except Exception as error:
            self.give_up(f"loader_use: {type(error).__name__}: {error}")
            return None

    def _loader_use(self, loader: Any) -> LoaderUse:
        use = use_of(self.loaders, loader)
        if use.begin_pass_of(loader):
            self._tell_loader(use)
        return use

    def _tell_loader(self, use: LoaderUse) -> None:
        self.events.tell("loader", {"number": use.number, **use.facts, "shape": use.shape})

    def begin_fetch(self, at: float, use: LoaderUse, grad_enabled: bool) -> None:
        if use.feeds_validation(grad_enabled):
            self._begin_validation(at)
        else:
            self._begin_work("data_wait", at)

    def end_fetch(self, at: float, use: LoaderUse, shape: tuple[int, ...], found: bool) -> None:
        """`found`: there was a batch, of such a shape, or else the epoch is over."""
        if self._in_validation:
            self._validated = at
            if not found:
                self._end_validation()
        else:
            self.book.work.wait_seconds += self.recorder.end_inner(at)
        if not found:
            return
        if shape and not use.shape:
            use.shape = tuple(map(int, shape))
            self._tell_loader(use)
        use.take(int(shape[0]) if shape else 0, self.book.done + 1, self._in_validation)
        self._fed_by = use

    def fetched_here(self, at: float, times: BatchTimes, start: float) -> None:
        """A batch that the training thread itself prepared, from `start` on."""
        prefix = "val_" if self._in_validation else ""
        for name, seconds in split_stages(*times).items():
            if seconds > _LEAST_SECONDS:
                self.recorder.lane("loader", prefix + name, start, seconds, self.book.done)

    # ---- computing

    def begin_call(self, at: float, module: int, trains: bool, shape: tuple[int, ...], grad_enabled: bool) -> None:
        """Of the module with this id, in training mode or not, with arguments of this shape."""
        known = module in self._seen_training
        if trains and not known and grad_enabled:
            self._seen_training.add(module)
        fed = self._fed_by is not None and self._fed_by.trained and self._fed_by.passed_by <= 1 and grad_enabled
        # without any loader, a model in training mode acts (reinforcement learning): no validation
        held_out = not grad_enabled and not self._feeds_training() and (bool(self.loaders) or not trains)
        if held_out or (not trains and known and not fed):
            self._begin_validation(at)
        else:
            self._begin_work("forward", at)
            if grad_enabled and not self.loader_trains and not self._call_samples:  # its loss may be called next
                self._call_samples = int(shape[0]) if shape else 0

    def _feeds_training(self) -> bool:
        """The newest batch is one of training: a pass without gradients over it is a teacher's, or bookkeeping."""
        use = self._fed_by
        return use is not None and use.trained and use.passed_by == 1 and not self._in_validation

    def end_call(self, at: float) -> None:
        if self._in_validation:
            self._validated = at
        else:
            self.recorder.end_inner(at)

    def begin_backward(self, at: float, loss: float | None, asked: bool = False) -> None:
        """`asked`: by torch.autograd.grad or torch.func, which is what a step is where nothing else is one."""
        self._begin_work("backward", at)
        self._backward_seen = self._backward_seen or not asked
        if asked and (self._backward_seen or self._optimizer_seen):
            return
        work, use = self.book.work, self._fed_by
        work.backwards += 1
        work.add_loss(loss, again=self._in_optimizer)
        for each in self.loaders.values():
            if each.may_train(each is use):
                self._train_on(each)
        if use is not None and use.trained:
            use.passed_by = 0
            if self._pass != (use.number, use.epoch):  # the first batch of a pass over training data
                self._pass = use.number, use.epoch
                self._epoch += 1
        if not self.loader_trains:
            work.samples += self._call_samples
            self._call_samples = 0

    def _train_on(self, use: LoaderUse) -> None:
        self.book.work.samples += use.take_trained()
        self.book.work.fetches += 1
        if not use.trained:
            use.trained = self.loader_trains = True
            self.events.tell("trained", use.number)

    def end_backward(self, at: float, computed: float | None, count_steps: bool, asked: bool = False) -> None:
        """`computed` is when the gradients were done, where others were waited for after."""
        if computed is not None and self.recorder.depth > 1 and computed > self.recorder.since:
            self.recorder.switch("communication", computed)
        self.recorder.end_inner(at)
        if count_steps and not self._optimizer_seen and not (asked and self._backward_seen):
            self._by_hand = self._by_hand or self.book.work.backwards >= _BACKWARDS_BY_HAND
            if self._by_hand:
                self._count_step(at, 0, None)

    def copied(self, at: float, since: float) -> None:
        """Something went to another device, from `since` on."""
        if self.recorder.depth == 1 and self.recorder.current == "other":
            self.recorder.switch("copy", since)
            self.recorder.switch("other", at)

    def begin_optimizer(self, at: float) -> None:
        if self.recorder.current == "optimizer":
            self.recorder.end_inner(at)  # of a step that raised: its end was never told
        self._begin("optimizer", at)
        self._in_optimizer = True

    def end_optimizer(self, at: float, optimizer: int, learning_rate: float | None, counts: bool) -> None:
        """A step of the optimizer with this id; `counts`: it is one of the run."""
        self._in_optimizer = False
        self.recorder.end_inner(at)
        if not counts:
            return
        self._optimizer_seen = True
        for each in self.loaders.values():
            if len(each.waiting) > 1:
                self.book.work.samples += each.take_left_behind()
        self._count_step(at, optimizer, learning_rate)

    def end_step(self, at: float, samples: int | None) -> None:
        """A step that the script says itself, of so many samples where it knows."""
        self._settle(at)
        self.book.begin(self.recorder.since)
        if samples is not None:
            self.book.work.samples = samples
        self._count_step(at, 0, None)

    def take_loss(self, at: float, loss: float) -> None:
        """Of this step, as the script says itself."""
        self.book.work.loss = loss

    def _count_step(self, at: float, optimizer: int, learning_rate: float | None) -> None:
        if self.events.rank is None:
            self._claim()
            if not self.active:
                return
        use = self._fed_by
        index = self.book.done if use is None else max(0, use.batch_index)
        step = self.book.optimizer_done(optimizer, at, max(0, self._epoch), index, learning_rate)
        self.recorder.step = self.book.done
        if self.recorder.depth == 1:
            self.recorder.switch("other", at)  # what a kill leaves of it is at most a step's
        if step is not None:
            self.events.tell_step(step)
        if at - self._written > _WRITE_SECONDS or self.book.done <= _FIRST_STEPS:
            self._written = at
            self.recorder.flush()
            self.events.write()
        if at - self._told_totals > _TOTALS_SECONDS:
            self._told_totals = at
            self.events.tell("totals", {"parts": self.recorder.totals(), "wall_seconds": self.recorder.wall_seconds()})

    def begin_part(self, at: float, name: str) -> None:
        """One inside another of the same name is a part of that."""
        opens = self.recorder.current != name
        self._parts.append(opens)
        if opens:
            self._begin(name, at)

    def end_part(self, at: float, name: str) -> None:
        if self._parts and self._parts.pop():
            seconds = self.recorder.end_inner(at)
            if name == "checkpoint":
                self.book.set_aside(seconds)

    # ---- telling

    def abandon(self) -> None:
        """In a forked child: the ledger is its parent's."""
        self.active, self.thread = False, 0

    def give_up(self, why: str) -> None:
        """Hooks stay where they are and do nothing any more."""
        self.active = False
        self.events.missing(f"the ledger ended after step {self.recorder.step}: {why}")

    def close(self, ended: dict[str, Any]) -> None:
        """When the process ends by itself."""
        self.catch_up()
        trained = self.events.rank is not None
        if not trained and ended.get("cause") is None and not self.loaders and not self._seen_training:
            return  # a launcher, a tool: nothing of a training was seen here
        if not trained and self.events.told_rank() is None:
            self.events.write_unranked(ended)
            return
        if not trained:
            self._claim()
        if not self.active and self.events.rank is None:
            return
        if (last := self.book.take_last()) is not None:
            self.events.tell_step(last)
        self._settle(time.perf_counter())
        self.recorder.close()
        self.events.tell("totals", {"parts": self.recorder.totals(), "wall_seconds": self.recorder.wall_seconds()})
        self.events.tell("end", ended)
        self.events.write()

    def _claim(self) -> None:
        if not self.events.claim():
            self.active = False
            return
        self.recorder.keep_at(self.events.run / f"spans/rank{self.events.rank}.jsonl", self.events.attempt)

    # ---- spans

    def _begin(self, name: str, at: float) -> None:
        """A hook of training, or of a save: whatever validation there was is over."""
        if self._unsettled:
            self._settle(at)
        self.recorder.begin(name, at)

    def _begin_work(self, name: str, at: float) -> None:
        """A part of a step."""
        if self._unsettled:
            self._settle(at)
        self.recorder.begin(name, at)
        if self.book.start is None:
            self.book.begin(at)

    def _settle(self, at: float) -> None:
        """The start and a validation end where training begins or goes on."""
        if self.recorder.depth == 1:
            if self._in_validation:
                self._end_validation()
            elif self.recorder.current == "startup":
                self.recorder.switch("other", at)
            self._unsettled = False

    def _begin_validation(self, at: float) -> None:
        """All from the first batch without gradients to the last is one span, the script's code in between too."""
        if not self._in_validation and self.recorder.depth == 1:
            self._in_validation = self._unsettled = True
            if self._fed_by is not None:
                self._fed_by.validates = True
            self.recorder.switch("validation", at)
        elif not self._in_validation:
            self._begin("forward", at)

    def _end_validation(self) -> None:
        """Since its last event: what came after that was something else."""
        self._in_validation = False
        self.book.set_aside(max(0.0, self._validated - self.recorder.since))
        self.recorder.switch("other", self._validated)


_BEGUN = {
    ScriptLedger.begin_fetch: "data_wait",
    ScriptLedger.begin_call: "forward",
    ScriptLedger.begin_backward: "backward",
    ScriptLedger.begin_optimizer: "optimizer",
}
