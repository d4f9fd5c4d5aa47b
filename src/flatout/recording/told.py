"""What the recorded processes said, rank by rank, in the order they said it. Pure: fed with lines, asked for tables."""

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RankTold:
    """The events of one rank, over all its attempts."""

    process: dict[str, Any] = field(default_factory=dict)
    """Of the newest attempt."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    """Numbers of the loaders that feed training."""
    lines: list[list[Any]] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    debugging: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    logged: list[dict[str, Any]] = field(default_factory=list)
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
                    self.steps.append({**value, "epoch": value["epoch"] + self._earlier_epochs})
                case "loader":
                    self.loaders[value["number"]] = value
                case "trained":
                    self.trained.append(value)
                case "missing":
                    self.missing.append(str(value))
                case "log":
                    self.logged.append({**value, "step": len(self.steps)})
                case "lines" | "totals" | "debugging" | "end":
                    setattr(self, kind, value)

    def _begin_attempt(self, process: dict[str, Any]) -> None:
        self.process, self.end, self.attempts = process, None, self.attempts + 1
        self._earlier_epochs = self.steps[-1]["epoch"] + 1 if self.steps else 0

    @property
    def training_loader(self) -> dict[str, Any]:
        """The first that a backward pass followed, or else the first; empty where the script used none."""
        order = [*self.trained, *self.loaders]
        rated = (self.loaders[each] for each in order if each in self.loaders)
        return next((each for each in rated if each.get("num_workers") is not None), {})


def step_rows(ranks: Sequence[RankTold], first: int, ended: bool) -> list[dict[str, Any]]:
    """Rows of steps.csv from index `first` on: rank 0's times, the samples of all ranks. A step that another rank has
    not told yet is held back until it has, or until the run is over."""
    if not ranks:
        return []
    have = [len(rank.steps) for rank in ranks]
    last = have[0] if ended else min(have)
    rows = []
    for index in range(first, last):
        told = [rank.steps[index] for rank in ranks if index < len(rank.steps)]
        row = {name: value for name, value in told[0].items() if name != "microbatches"}
        rows.append({**row, "step": index + 1, "samples": sum(each["samples"] for each in told)})
    return rows


def epoch_rows(steps: Sequence[Mapping[str, Any]], logged: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Rows of epochs.csv: what each epoch's steps say, and what the script logged by hand in it (the last value)."""
    found: dict[int, dict[str, Any]] = {}
    losses: dict[int, list[float]] = {}
    for step in steps:
        row = found.setdefault(step["epoch"], {"epoch": step["epoch"], "samples": 0})
        row |= {name: step[name] for name in ("attempt", "step", "learning_rate", "time_unix")}
        row["samples"] += step["samples"]
        if step["loss"] is not None:
            losses.setdefault(step["epoch"], []).append(step["loss"])
    for epoch, values in losses.items():
        found[epoch]["train_loss"] = sum(values) / len(values)
    for told in logged:
        at = min(max(0, told["step"] - 1), len(steps) - 1)
        if steps:
            given = {name: value for name, value in told.items() if name not in ("step", "loss")}
            found[steps[at]["epoch"]] |= given
    return [found[epoch] for epoch in sorted(found)]


def with_source(lines: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The hottest lines with their text, most samples first."""
    found = []
    for part, file, line, function, samples in sorted(lines, key=lambda each: -each[4]):
        text = linecache.getline(file, line).strip()[:160]
        found.append({"part": part, "file": file, "line": line, "function": function, "samples": samples, "text": text})
    return found
