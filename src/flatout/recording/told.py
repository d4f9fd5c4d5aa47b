"""What the recorded processes said, rank by rank, in the order they said it. Pure: fed with lines, asked for tables."""

import linecache
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.runs.step_totals import Steps, StepTotals


@dataclass
class RankTold:
    """The events of one rank, over all its attempts. A step is kept until it is a row of the run: a long run takes no
    more memory than a short one."""

    process: dict[str, Any] = field(default_factory=dict)
    """Of the newest attempt."""
    waiting: deque[dict[str, Any]] = field(default_factory=deque)
    """Steps that are no rows yet."""
    steps: int = 0
    samples: int = 0
    microbatches: int = 0
    last_epoch: int = 0
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    """Numbers of the loaders that feed training."""
    lines: list[list[Any]] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    debugging: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    logged: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By epoch: the last value of each figure that the script logged by hand."""
    end: dict[str, Any] | None = None
    """None while it runs, and for ever where it was killed."""
    attempts: int = 0
    _earlier_epochs: int = 0

    def add(self, event: Mapping[str, Any]) -> None:
        for kind, value in event.items():
            match kind:
                case "process":
                    self._begin_attempt(value)
                case "step":
                    self._add_step(value)
                case "loader":
                    self.loaders[value["number"]] = value
                case "trained":
                    self.trained.append(value)
                case "missing":
                    self.missing.append(str(value))
                case "log":
                    self.logged.setdefault(self.last_epoch, {}).update(value)
                case "lines" | "totals" | "debugging" | "end":
                    setattr(self, kind, value)

    def _begin_attempt(self, process: dict[str, Any]) -> None:
        self.process, self.end, self.attempts = process, None, self.attempts + 1
        self._earlier_epochs = self.last_epoch + 1 if self.steps else 0

    def _add_step(self, step: Mapping[str, Any]) -> None:
        self.last_epoch = step["epoch"] + self._earlier_epochs
        self.waiting.append({**step, "epoch": self.last_epoch})
        self.steps += 1
        self.samples += step["samples"]
        self.microbatches += step.get("microbatches") or 1

    @property
    def training_loader(self) -> dict[str, Any]:
        """The first that a backward pass followed, or else the first; empty where the script used none."""
        order = [*self.trained, *self.loaders]
        rated = (self.loaders[each] for each in order if each in self.loaders)
        found = next((each for each in rated if each.get("num_workers") is not None), {})
        return {**found, "rebuilt": True} if found and self._built_anew(found) else found

    def _built_anew(self, loader: Mapping[str, Any]) -> bool:
        """Most passes had one of their own, with a dataset of its own, too."""
        settings = {**loader, "number": None}
        trained = (self.loaders[each] for each in set(self.trained) if each in self.loaders)
        alike = sum({**each, "number": None} == settings for each in trained)
        return alike > 1 and 2 * alike > self.last_epoch + 1


def take_rows(ranks: Sequence[RankTold], first: int, ended: bool) -> list[dict[str, Any]]:
    """The next rows of steps.csv, from index `first` on: rank 0's times, the samples of all ranks. A step that another
    rank has not told yet is held back until it has, or until the run is over."""
    if not ranks:
        return []
    have = [len(rank.waiting) for rank in ranks]
    rows = []
    for index in range(first, first + (have[0] if ended else min(have))):
        told = [rank.waiting.popleft() for rank in ranks if rank.waiting]
        row = {name: value for name, value in told[0].items() if name != "microbatches"}
        rows.append({**row, "step": index + 1, "samples": sum(each["samples"] for each in told)})
    return rows


class RowTotals:
    """What the rows of steps.csv add up to, epoch by epoch and in all."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.first_wait_seconds = 0.0
        self._speed = StepTotals(Steps())
        self._epochs: dict[int, dict[str, Any]] = {}
        self._losses: dict[int, tuple[float, int]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        if not self.steps:
            self.first_wait_seconds = row["data_wait_seconds"]
        self.steps += 1
        self.samples += row["samples"]
        self._speed.add(row["step_seconds"], row["samples"])
        epoch = self._epochs.setdefault(row["epoch"], {"epoch": row["epoch"], "samples": 0})
        epoch |= {name: row[name] for name in ("attempt", "step", "learning_rate", "time_unix")}
        epoch["samples"] += row["samples"]
        if row["loss"] is not None:
            total, count = self._losses.get(row["epoch"], (0.0, 0))
            self._losses[row["epoch"]] = total + row["loss"], count + 1

    def throughput(self) -> dict[str, Any]:
        return self._speed.throughput()

    def epoch_rows(self, logged: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of epochs.csv, with what the script logged in each."""
        rows = []
        for epoch, row in sorted(self._epochs.items()):
            total, count = self._losses.get(epoch, (0.0, 0))
            mean = {"train_loss": total / count} if count else {}
            rows.append(
                {**row, **mean, **{key: value for key, value in logged.get(epoch, {}).items() if key != "loss"}}
            )
        return rows


def with_source(lines: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The hottest lines with their text, most samples first."""
    found = []
    for part, file, line, function, samples in sorted(lines, key=lambda each: -each[4]):
        text = linecache.getline(file, line).strip()[:160]
        found.append({"part": part, "file": file, "line": line, "function": function, "samples": samples, "text": text})
    return found
