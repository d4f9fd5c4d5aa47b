"""What the experiments of a suite came to: one row each, whatever became of it, with the values of its repeats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.analysis.mean_epoch import MeanEpoch
from flatout.analysis.values import look_up
from flatout.config.dotted import nested
from flatout.config.tasks import spec_of
from flatout.runs import Run


@dataclass(frozen=True)
class ExperimentOutcome:
    """One run of an experiment. Without `run` it never began; `cause` says why it did not end well."""

    name: str
    comment: str
    config: Mapping[str, Any]
    run: Run | None = None
    epoch: MeanEpoch | None = None
    cause: str | None = None
    notes: tuple[str, ...] = ()
    predicted_seconds: float | None = None  # of an epoch, from an earlier experiment


@dataclass(frozen=True)
class SuiteRow:
    """An experiment with all its repeats."""

    name: str
    values: dict[str, list[Any]]
    """By column title, one for each repeat; None where a repeat has none."""
    epochs: list[MeanEpoch]
    causes: list[str]
    comments: str

    def mean(self, read: Callable[[MeanEpoch], float]) -> float:
        """Of a figure of the mean epoch over the repeats that have one."""
        return sum(map(read, self.epochs)) / len(self.epochs)

    def differences(self) -> list[tuple[str, float]]:
        """Why an epoch took other than the estimate, in seconds, largest first."""
        names = list(self.epochs[0].differences) if self.epochs else []
        means = [(name, self.mean(lambda epoch: epoch.differences[name])) for name in names]  # noqa: B023
        return sorted(means, key=lambda each: -abs(each[1]))


def row_from_json(values: Mapping[str, Any]) -> SuiteRow:
    """As `reports/suite_table.py` writes it; KeyError, TypeError or AttributeError where it is something else."""
    listed = {str(title): list(each) for title, each in values["values"].items()}
    epochs = [MeanEpoch(**each) for each in values["epochs"]]
    return SuiteRow(str(values["name"]), listed, epochs, [*map(str, values["causes"])], str(values["comments"]))


def suite_rows(outcomes: Sequence[ExperimentOutcome], columns: Sequence[str]) -> list[SuiteRow]:
    """In the order of the suite; the repeats of an experiment are one row. `columns` are dotted keys of summary or
    configuration that the suite asks for besides the usual ones."""
    names = dict.fromkeys(each.name for each in outcomes)
    return [_row(name, [each for each in outcomes if each.name == name], columns) for name in names]


def _row(name: str, repeats: Sequence[ExperimentOutcome], columns: Sequence[str]) -> SuiteRow:
    readers = {**_COLUMNS, **{key: _chosen(key) for key in columns}}
    values = {title: [read(each) for each in repeats] for title, read in readers.items()}
    causes = list(dict.fromkeys(each.cause for each in repeats if each.cause))
    notes = dict.fromkeys(note for each in repeats for note in each.notes)
    comments = "; ".join(part for part in (*causes, repeats[0].comment, *notes) if part)
    return SuiteRow(name, values, [each.epoch for each in repeats if each.epoch], causes, comments)


def _memory(outcome: ExperimentOutcome) -> float | None:
    """Of the device; of a CPU, what the processes of the run held."""
    summary = outcome.run.summary if outcome.run else {}
    found = nested(summary, "device_use.memory_peak_bytes") or nested(summary, "host.rss_peak_bytes")
    return None if found is None else float(found)


def _batch(outcome: ExperimentOutcome) -> Any:
    if spec_of(nested(outcome.config, "task")).batch_unit == "tokens":
        return f"{nested(outcome.config, 'data.batch_tokens')} tokens"
    return nested(outcome.config, "data.batch_size")


def _setting(key: str) -> Callable[[ExperimentOutcome], Any]:
    return lambda outcome: nested(outcome.config, key)


def _epoch(name: str) -> Callable[[ExperimentOutcome], Any]:
    return lambda outcome: None if outcome.epoch is None else getattr(outcome.epoch, name)


def _parallel(mode: str) -> Callable[[ExperimentOutcome], bool]:
    return lambda outcome: str(nested(outcome.config, "parallel.mode")) == mode


def _chosen(key: str) -> Callable[[ExperimentOutcome], Any]:
    return lambda outcome: nested(outcome.config, key) if outcome.run is None else look_up(outcome.run, key)


_COLUMNS: dict[str, Callable[[ExperimentOutcome], Any]] = {
    "batch": _batch,
    "workers": _setting("data.workers"),
    "checkpointing": _setting("train.checkpointing"),
    "DP": _parallel("dp"),
    "DDP": _parallel("ddp"),
    "time per batch": _epoch("batch_seconds"),
    "estimated epoch": _epoch("estimate_seconds"),
    "predicted epoch": lambda outcome: outcome.predicted_seconds,
    "actual epoch": _epoch("actual_seconds"),
    "memory": _memory,
}
