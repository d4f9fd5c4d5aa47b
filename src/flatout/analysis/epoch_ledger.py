"""The ledger cut by epochs, and why an epoch takes longer than its number of batches times the time of one."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from flatout.config.tasks import spec_of
from flatout.runs import Run
from flatout.runs.steps import StepRow
from flatout.runs.summary import quantile
from flatout.timeline.reading import SpanRow
from flatout.timeline.recorder import PARTS


def part_order(part: str) -> tuple[int, str]:
    """Sorts parts of the ledger as a run meets them; names not known here come last."""
    return (PARTS.index(part) if part in PARTS else len(PARTS), part)


class EpochLedger:
    """Fed with the main thread's rows of one rank in file order; seconds of every part, epoch by epoch.

    What lies between two rows is the unattributed time of the later one's epoch, so parts add up to the wall clock.
    """

    def __init__(self, steps: Sequence[StepRow]) -> None:
        """`steps` tell which step belongs to which epoch."""
        firsts: dict[int, int] = {}
        for row in steps:
            firsts.setdefault(row.epoch, row.step)
        self._epochs = list(firsts)
        self._first_steps = list(firsts.values())
        self._waits: list[SpanRow] = []  # for data: they belong to the step that follows
        self._end = 0.0
        self._attempt = 0
        self._last_attempt: dict[int, int] = {}
        self.startup: dict[str, float] = {}
        self.epochs: dict[int, dict[str, float]] = {}
        self.restarted: set[int] = set()  # epochs that more than one attempt worked on

    def start_attempt(self) -> None:
        self._flush(0)
        self._end = 0.0
        self._attempt += 1

    def add(self, row: SpanRow) -> None:
        if row.name == "data_wait":
            self._waits.append(row)
            return
        self._flush(row.step)
        self._book(row, row.step)

    def finish(self) -> None:
        self._flush(0)

    def _flush(self, step: int) -> None:
        for wait in self._waits:
            self._book(wait, step or wait.step)
        self._waits.clear()

    def _book(self, row: SpanRow, step: int) -> None:
        parts = self.startup if step < 1 or not self._epochs else self._parts_of(step)
        parts[row.name] = parts.get(row.name, 0.0) + row.own
        end = max(self._end, row.start + row.seconds)
        # Less than nothing where spans were inside this one: what lay before them was booked as a gap, and is its own.
        parts["unattributed"] = parts.get("unattributed", 0.0) + end - self._end - row.own
        self._end = end

    def _parts_of(self, step: int) -> dict[str, float]:
        epoch = self._epochs[max(0, bisect_right(self._first_steps, step) - 1)]
        if self._last_attempt.setdefault(epoch, self._attempt) != self._attempt:
            self.restarted.add(epoch)
        return self.epochs.setdefault(epoch, {})


@dataclass(frozen=True)
class EpochAccount:
    """Estimate against actual, in seconds: the estimate plus all that follows it is the actual epoch, to the last bit
    of rounding."""

    epoch: int
    batches: float  # N / B: the last, shorter batch counts as the part of one that it is
    batch_seconds: float  # median step without its wait for data
    estimate: float
    actual: float
    data_wait: float
    warm_up: float  # what the first step of an attempt took more than the median
    uneven_steps: float  # what all other steps took more (or less) than the median
    validation: float
    checkpoint: float
    other: float
    restarted: bool  # more than one attempt worked on it: what was lost with the first is in `other`


DIFFERENCES = ("data_wait", "warm_up", "uneven_steps", "validation", "checkpoint", "other")


def account_epochs(run: Run, ledger: EpochLedger) -> list[EpochAccount]:
    """One account for every epoch that has steps and spans; none where the batch size is not known."""
    if spec_of(run.config.get("task")).batch_unit == "tokens":  # batches differ in samples: each step is one
        return account_steps(run.steps, ledger, None)
    batch_size = (run.config.get("data") or {}).get("batch_size")
    return account_steps(run.steps, ledger, batch_size) if isinstance(batch_size, int) else []


def account_steps(steps: Sequence[StepRow], ledger: EpochLedger, batch_size: int | None) -> list[EpochAccount]:
    """`steps` are those that count. Without a `batch_size` each of them is one batch."""
    by_epoch: dict[int, list[StepRow]] = {}
    for row in steps:
        by_epoch.setdefault(row.epoch, []).append(row)
    attempts: set[int] = set()
    accounts = []
    for epoch, rows in by_epoch.items():
        fresh = {row.attempt for row in rows} - attempts
        if epoch in ledger.epochs:
            accounts.append(_account(epoch, rows, ledger, batch_size, fresh))
        attempts |= fresh
    return accounts


def _account(
    epoch: int, rows: Sequence[StepRow], ledger: EpochLedger, batch_size: int | None, fresh: set[int]
) -> EpochAccount:
    """`fresh`: attempts whose first step is in this epoch."""
    parts = ledger.epochs[epoch]
    compute = [row.own_seconds for row in rows]
    median = quantile(sorted(compute), 0.5)
    starts = [next(i for i, row in enumerate(rows) if row.attempt == attempt) for attempt in fresh]
    warm_up = sum(compute[i] - median for i in starts)
    batches = len(rows) if batch_size is None else sum(row.samples for row in rows) / batch_size
    actual, estimate = sum(parts.values()), batches * median
    known = {name: parts.get(name, 0.0) for name in ("data_wait", "validation", "checkpoint")}
    return EpochAccount(
        epoch,
        batches,
        median,
        estimate,
        actual,
        warm_up=warm_up,
        uneven_steps=sum(compute) - warm_up - estimate,
        other=actual - sum(compute) - sum(known.values()),
        restarted=epoch in ledger.restarted,
        **known,
    )


def explain_difference(accounts: Sequence[EpochAccount]) -> str | None:
    """One sentence on the mean epoch: estimate, actual, and what the difference consists of, largest first."""
    if not accounts:
        return None
    count = len(accounts)
    mean = {name: sum(getattr(a, name) for a in accounts) / count for name in ("estimate", "actual", *DIFFERENCES)}
    batches, step = accounts[0].batches, sum(a.batch_seconds for a in accounts) / count
    words = sorted(DIFFERENCES, key=lambda name: -abs(mean[name]))
    named = [f"{_NAMES[name]} {mean[name]:+.3g} s" for name in words if abs(mean[name]) >= 0.005 * mean["actual"]]
    off = mean["actual"] / mean["estimate"] - 1 if mean["estimate"] else 0.0
    return (
        f"estimate {batches:.4g} batches x {step:.3g} s = {mean['estimate']:.3g} s, actual {mean['actual']:.3g} s "
        f"({100 * off:+.0f} %): {', '.join(named) or 'nothing else of note'}"
    )


_NAMES = {
    "data_wait": "waiting for data",
    "warm_up": "first step",
    "uneven_steps": "steps off the median",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "other": "between steps",
}
