"""The usual epoch of a run: what it was estimated at, what it took, part by part. For tables with a row per run."""

from dataclasses import dataclass

from flatout.analysis.activity import read_activity
from flatout.analysis.epoch_ledger import DIFFERENCES, account_epochs
from flatout.runs.directory import RunDirectory
from flatout.runs.reading import Run


@dataclass(frozen=True)
class MeanEpoch:
    """Means over the finished epochs, in seconds. `differences` add up to actual - estimate, `parts` to actual."""

    batches: float
    batch_seconds: float
    estimate_seconds: float
    actual_seconds: float
    differences: dict[str, float]
    parts: dict[str, float]


def mean_epoch(run: Run) -> MeanEpoch | None:
    """None where no epoch was finished."""
    whole = {int(row["epoch"]) for row in run.epochs}
    if not whole:
        return None
    by_epoch = read_activity(RunDirectory(run.directory).rank_spans(), run.steps).ledger
    ledger = by_epoch.epochs
    accounts = [each for each in account_epochs(run, by_epoch) if each.epoch in whole]
    if not accounts:
        return None

    def mean(name: str) -> float:
        return sum(float(getattr(each, name)) for each in accounts) / len(accounts)

    names = dict.fromkeys(name for each in accounts for name in ledger[each.epoch])
    parts = {name: sum(ledger[each.epoch].get(name, 0.0) for each in accounts) / len(accounts) for name in names}
    return MeanEpoch(
        mean("batches"),
        mean("batch_seconds"),
        mean("estimate"),
        mean("actual"),
        {name: mean(name) for name in DIFFERENCES},
        parts,
    )
