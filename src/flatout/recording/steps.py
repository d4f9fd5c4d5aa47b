"""Which optimizer step is which step of the run: pure bookkeeping, told about events as they come."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepWork:
    """Since the last optimizer step."""

    samples: int = 0
    fetches: int = 0
    wait_seconds: float = 0.0
    beside_seconds: float = 0.0
    """Validation and checkpoints, which are no part of a step."""
    loss: float | None = None
    """What the step's gradient is the gradient of: the sum over its backward passes, of which who accumulates divides
    each. None where no value was at hand."""
    backwards: int = 0
    supposed: bool = False
    """No batch was fetched for it: `samples` are those of the step before."""

    def add_loss(self, loss: float | None, again: bool) -> None:
        """`again`: of a closure that the optimizer calls at several points; the first is where the step begins."""
        if loss is not None and not (again and self.loss is not None):
            self.loss = loss if self.loss is None else self.loss + loss


@dataclass(slots=True)
class RecordedStep:
    """One finished step. Times are of time.perf_counter."""

    start: float
    end: float
    epoch: int
    batch_index: int
    learning_rate: float | None
    work: StepWork

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start - self.work.beside_seconds)


class StepBook:
    """A step ends when every optimizer that takes part has stepped once: with two of them (a GAN) that is known when
    the first of them steps again, so each step is given out when the next one's optimizer is done."""

    def __init__(self) -> None:
        self.done = 0
        """Steps that ended, the one that is not given out yet among them."""
        self.work = StepWork()
        self.start: float | None = None
        """Of the first step; None until it has begun."""
        self._pending: RecordedStep | None = None
        self._stepped: set[int] = set()

    def begin(self, now: float) -> None:
        """The first thing a step does; all but the first begin where the one before ended."""
        if self.start is None:
            self.start = now

    def set_aside(self, seconds: float) -> None:
        """No part of the step, where one has begun."""
        if self.start is not None:
            self.work.beside_seconds += seconds

    def optimizer_done(
        self, optimizer: int, now: float, epoch: int, batch_index: int, learning_rate: float | None
    ) -> RecordedStep | None:
        """The step before, where this is the first optimizer of a new one."""
        work, self.work = self.work, StepWork()
        pending = self._pending
        if pending is not None and optimizer not in self._stepped:
            self._stepped.add(optimizer)
            pending.end = now
            _add(pending.work, work)
            return None
        if pending is not None and work.backwards and not work.samples:  # a batch that the script kept
            work.samples, work.supposed = pending.work.samples, True
        start = pending.end if pending is not None else self.start if self.start is not None else now
        self._pending = RecordedStep(start, now, epoch, batch_index, learning_rate, work)
        self._stepped = {optimizer}
        self.done += 1
        return pending

    def take_last(self) -> RecordedStep | None:
        """When the script is over."""
        last, self._pending = self._pending, None
        return last


def _add(total: StepWork, more: StepWork) -> None:
    if total.supposed and more.samples:
        total.samples, total.supposed = 0, False
    total.samples += more.samples
    total.fetches += more.fetches
    total.wait_seconds += more.wait_seconds
    total.beside_seconds += more.beside_seconds
    if more.loss is not None:
        total.loss = more.loss if total.loss is None else total.loss + more.loss
    total.backwards += more.backwards
