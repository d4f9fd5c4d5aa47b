"""Which runs may be compared in what, said in words: a comparison that hides a difference is worse than none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.reports.values import nested
from flatout.runs import Run
from flatout.runs.mean_epoch import MeanEpoch


@dataclass(frozen=True)
class Side:
    """One run of a comparison. `settings` are the dotted keys of its configuration."""

    label: str
    run: Run
    settings: Mapping[str, Any]
    epoch: MeanEpoch | None


def find_caveats(sides: Sequence[Side]) -> list[tuple[str, str]]:
    """What keeps the runs from being compared, each as its kind and a sentence."""
    found: list[tuple[str, str]] = []
    summaries = [side.run.summary for side in sides]
    unknown = [side.label for side in sides if not side.run.summary.get("data_fingerprint")]
    fingerprints = {summary.get("data_fingerprint") for summary in summaries}
    if len(fingerprints - {None}) > 1:
        words = ", ".join(f"{side.label} {_data_words(side.run.summary)}" for side in sides)
        found.append(("data", f"NOT the same data: {words}; accuracy and epochs do not compare"))
    elif unknown and len(unknown) < len(sides):
        found.append(("data", f"nothing says that {_and(unknown)} saw the same data as the others; "
                              "accuracy and epochs may not compare"))  # fmt: skip
    emulated = [side.label for side in sides if nested(side.run.summary, "device.emulated")]
    if emulated and len(emulated) < len(sides):
        found.append(("emulated", f"{_and(emulated)} ran on an EMULATED device, the others on a real one: times are "
                                  "a model's against a machine's, and its accuracy means nothing"))  # fmt: skip
    elif emulated:
        found.append(("accuracy", "all on EMULATED devices: accuracy means nothing"))
    for key, what in (("task", "task"), ("checkpoint.metric", "metric of what is best")):
        values = [side.settings.get(key) for side in sides]
        if len({value for value in values if value is not None}) > 1:
            words = ", ".join(f"{side.label} {value}" for side, value in zip(sides, values, strict=True))
            found.append(("accuracy" if key == "task" else "metric", f"not the same {what}: {words}"))
    found += [("unfinished", text) for text in _unfinished(sides)]
    if len({summary.get("samples_seen") for summary in summaries}) > 1:
        words = ", ".join(f"{side.label} {side.run.summary.get('samples_seen') or 0:,}" for side in sides)
        found.append(("amount", f"not the same amount of training: samples seen {words}"))
    if len({_epoch_samples(side) for side in sides} - {None}) > 1:
        found.append(("epoch", "epochs are not of the same length: not the same number of samples in each"))
    for side in sides:
        if (attempts := side.run.summary.get("attempts") or 1) > 1:
            found.append(
                ("resumed", f"{side.label} was resumed ({attempts} attempts): its times and cost hold them all")
            )
    dates = {nested(summary, "cost.prices_dated") for summary in summaries} - {None}
    if len(dates) > 1:
        found.append(("prices", f"costs are by price lists of different dates: {', '.join(sorted(map(str, dates)))}"))
    return found


def _unfinished(sides: Sequence[Side]) -> list[str]:
    texts = []
    for side in sides:
        summary = side.run.summary
        if summary.get("imported"):
            texts.append(f"{side.label} was imported: only what its log held is known")
        if side.run.status != "completed":
            cause = f" ({summary['cause']})" if summary.get("cause") else ""
            texts.append(f"{side.label} is {side.run.status}{cause}: its figures are those up to there")
    return texts


def _epoch_samples(side: Side) -> int | None:
    return None if side.epoch is None else round(side.epoch.batches * side.settings.get("data.batch_size", 1))


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
