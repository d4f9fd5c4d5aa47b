"""Which runs may be compared in what, said in words: a comparison that hides a difference is worse than none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.analysis.mean_epoch import MeanEpoch
from flatout.config.dotted import nested
from flatout.config.tasks import spec_of
from flatout.runs import Run


@dataclass(frozen=True)
class Side:
    """One run of a comparison. `settings` are the dotted keys of its configuration."""

    label: str
    run: Run
    settings: Mapping[str, Any]
    epoch: MeanEpoch | None


Caveat = tuple[str, str]
"""Its kind, which says what figures it touches (compare.py), and a sentence."""


def find_caveats(sides: Sequence[Side]) -> list[Caveat]:
    """Everything that keeps the runs from being compared, the gravest first."""
    checks = (_data, _emulated, _task, _unfinished, _amount, _resumed, _prices)
    return [caveat for check in checks for caveat in check(sides)]


def _data(sides: Sequence[Side]) -> Iterator[Caveat]:
    unknown = [side.label for side in sides if not side.run.summary.get("data_fingerprint")]
    kinds = {side.run.summary.get("data_fingerprint_by", "names and sizes") for side in sides} - {None}
    key = "data_fingerprint" if kinds == {"content"} else "data_names_fingerprint"
    if len({side.run.summary.get(key) or side.run.summary.get("data_fingerprint") for side in sides} - {None}) > 1:
        words = ", ".join(f"{side.label} {_data_words(side.run.summary)}" for side in sides)
        yield "data", f"NOT the same data: {words}; accuracy and epochs do not compare"
    elif unknown and len(unknown) < len(sides):
        same = f"nothing says that {_and(unknown)} saw the same data as the others"
        yield "data", f"{same}; accuracy and epochs may not compare"


def _emulated(sides: Sequence[Side]) -> Iterator[Caveat]:
    emulated = [side.label for side in sides if nested(side.run.summary, "device.emulated")]
    if len(emulated) == len(sides):
        yield "accuracy", "all on EMULATED devices: accuracy means nothing"
    elif emulated:
        means = "times are a model's against a machine's, and its accuracy means nothing"
        yield "emulated", f"{_and(emulated)} ran on an EMULATED device, the others on a real one: {means}"


def _task(sides: Sequence[Side]) -> Iterator[Caveat]:
    for key, kind, what in (("task", "accuracy", "task"), ("checkpoint.metric", "metric", "metric of what is best")):
        if len({side.settings.get(key) for side in sides} - {None}) > 1:
            words = ", ".join(f"{side.label} {side.settings.get(key)}" for side in sides)
            yield kind, f"not the same {what}: {words}"


def _amount(sides: Sequence[Side]) -> Iterator[Caveat]:
    if len({side.run.summary.get("samples_seen") for side in sides}) > 1:
        words = ", ".join(f"{side.label} {side.run.summary.get('samples_seen') or 0:,}" for side in sides)
        yield "amount", f"not the same amount of training: samples seen {words}"
    if len({_epoch_samples(side) for side in sides} - {None}) > 1:
        yield "epoch", "epochs are not of the same length: not the same number of samples in each"


def _resumed(sides: Sequence[Side]) -> Iterator[Caveat]:
    for side in sides:
        if (attempts := side.run.summary.get("attempts") or 1) > 1:
            yield "resumed", f"{side.label} was resumed ({attempts} attempts): its times and cost hold them all"


def _prices(sides: Sequence[Side]) -> Iterator[Caveat]:
    dates = {nested(side.run.summary, "cost.prices_dated") for side in sides} - {None}
    if len(dates) > 1:
        yield "prices", f"costs are by price lists of different dates: {', '.join(sorted(map(str, dates)))}"


def _unfinished(sides: Sequence[Side]) -> Iterator[Caveat]:
    for side in sides:
        summary = side.run.summary
        if summary.get("imported"):
            yield "imported", f"{side.label} was imported: only what its log held is known"
        if side.run.status != "completed":
            cause = f" ({summary['cause']})" if summary.get("cause") else ""
            yield "unfinished", f"{side.label} is {side.run.status}{cause}: its figures are those up to there"


def _epoch_samples(side: Side) -> int | None:
    by_samples = spec_of(side.settings.get("task")).batch_unit == "samples"
    if side.epoch is None or not by_samples:
        return None
    return round(side.epoch.batches * int(side.settings.get("data.batch_size", 1)))


def _data_words(summary: Mapping[str, Any]) -> str:
    samples = nested(summary, "data.samples_total")
    return f"{samples or 0:,} samples (fingerprint {str(summary.get('data_fingerprint'))[:8]})"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def unique_labels(runs: Sequence[Run]) -> list[str]:
    """Names; where two runs share one, as much of the path as tells them apart."""
    names = [run.name for run in runs]
    paths = [run.directory.resolve() for run in runs]
    deepest = max(len(path.parts) for path in paths)
    for depth in range(2, deepest + 1):
        tails = ["/".join(path.parts[-depth:]) for path in paths]
        labels = [tail if names.count(name) > 1 else name for name, tail in zip(names, tails, strict=True)]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{number}: {name}" for number, name in enumerate(names, 1)]
