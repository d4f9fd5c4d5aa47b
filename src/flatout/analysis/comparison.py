"""Runs side by side, as values: what differs, which is better and by how much, and what may not be compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatout.analysis.comparability import Side, find_caveats
from flatout.analysis.scaling import Scaling, epoch_usd, scaling
from flatout.analysis.values import flattened
from flatout.config.dotted import nested
from flatout.config.tasks import metric_named
from flatout.html_view import html_of
from flatout.runs import Run
from flatout.untrusted import number

_NOT_COMPARED = ("name",)  # a run's own name is its column's title


@dataclass(frozen=True)
class Figure:
    """One figure of every run. `better` is higher, lower or None (no judgement); ratios are to the first run."""

    key: str
    title: str
    better: str | None
    values: tuple[float | None, ...]

    @property
    def ratios(self) -> tuple[float | None, ...]:
        first = self.values[0]
        return tuple(None if value is None or not first else value / first for value in self.values)

    @property
    def best(self) -> int | None:
        """Which run is better than all others; None where that is not to be said."""
        known = [(value, index) for index, value in enumerate(self.values) if value is not None]
        if self.better is None or len(known) < 2:
            return None
        value, index = (max if self.better == "higher" else min)(known, key=lambda each: each[0])
        return index if sum(each == value for each, _ in known) == 1 else None


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; tuples have one value for each run, in the order of `labels`."""

    labels: tuple[str, ...]
    directories: tuple[Path, ...]
    caveats: tuple[str, ...]
    settings: tuple[tuple[str, tuple[Any, ...]], ...]
    machines: tuple[tuple[str, tuple[Any, ...]], ...]
    figures: tuple[Figure, ...]
    wall_seconds: tuple[float | None, ...]
    steps: tuple[int, ...]
    parts: Mapping[str, tuple[float | None, ...]]
    epoch_parts: Mapping[str, tuple[float | None, ...]]
    scaling: tuple[Scaling, ...]
    _repr_html_ = html_of

    def to_dict(self) -> dict[str, Any]:
        figures = [
            {**asdict(each), "ratios": each.ratios, "best": None if each.best is None else self.labels[each.best]}
            for each in self.figures
        ]
        return {**asdict(self), "directories": [str(each) for each in self.directories], "figures": figures}


def compare(sides: Sequence[Side]) -> Comparison:
    """The first run is the one the others are compared with."""
    caveats = find_caveats(sides)
    kinds = {kind for kind, _ in caveats}
    return Comparison(
        labels=tuple(side.label for side in sides),
        directories=tuple(side.run.directory for side in sides),
        caveats=tuple(text for _, text in caveats),
        settings=_differing([side.settings for side in sides], _NOT_COMPARED),
        machines=_differing([_machine(side.run) for side in sides]),
        figures=tuple(_figures(sides, kinds)),
        wall_seconds=tuple(nested(side.run.summary, "time.wall_seconds") for side in sides),
        steps=tuple(len(side.run.steps) for side in sides),
        parts=_table([nested(side.run.summary, "time.parts") or {} for side in sides]),
        epoch_parts=_table([side.epoch.parts if side.epoch else {} for side in sides]),
        scaling=() if "emulated" in kinds else tuple(scaling(sides)),
    )


def _machine(run: Run) -> dict[str, Any]:
    environment = dict(run.environment)
    environment.pop("command", None)
    return flattened({**environment, "world_size": run.summary.get("world_size")})


def _differing(
    sides: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()
) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    keys = dict.fromkeys(key for side in sides for key in side if key not in left_out)
    rows = [(key, tuple(side.get(key) for side in sides)) for key in keys]
    return tuple((key, values) for key, values in rows if any(value != values[0] for value in values))


def _table(columns: Sequence[Mapping[str, float | None]]) -> dict[str, tuple[float | None, ...]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: tuple(column.get(name) for column in columns) for name in names}


def _point_usd(side: Side) -> float | None:
    """The whole bill over what it bought, in points of top-1 (or of BLEU)."""
    total = nested(side.run.summary, "cost.total_usd")
    top1, bleu = (nested(side.run.summary, f"accuracy.{name}") for name in ("top1", "bleu"))
    points = 100 * top1 if top1 else bleu
    return None if total is None or not points else float(total) / float(points)


def _samples_per_usd(side: Side) -> float | None:
    total, samples = nested(side.run.summary, "cost.total_usd"), side.run.summary.get("samples_seen")
    return None if not total or not samples else float(samples) / float(total)


def _wait_share(side: Side) -> float | None:
    wait, wall = nested(side.run.summary, "time.parts.data_wait"), nested(side.run.summary, "time.wall_seconds")
    return None if wait is None or not wall else float(wait) / float(wall)


def _summary(key: str) -> Callable[[Side], Any]:
    return lambda side: nested(side.run.summary, key)


def _learnt(name: str) -> "_Row":
    better = metric_named(name).better
    return f"accuracy.{name}", name.replace("_", " "), better, "accuracy", _summary(f"accuracy.{name}")


_Row = tuple[str, str, str, str, Callable[[Side], Any]]
"""Key, title, which is better, group of figures that a caveat may take the judgement from, reader."""

_OTHERS: tuple[_Row, ...] = (
    ("samples_per_second", "samples per second", "higher", "time", _summary("throughput.samples_per_second")),
    ("p50.step_seconds", "step, median", "lower", "step", _summary("throughput.step_seconds.p50")),
    ("p95.step_seconds", "step, 95 % below", "lower", "step", _summary("throughput.step_seconds.p95")),
    ("epoch_seconds", "epoch", "lower", "epoch", lambda side: side.epoch.actual_seconds if side.epoch else None),
    ("wall_seconds", "wall clock", "lower", "whole", _summary("time.wall_seconds")),
    ("data_wait_share", "waiting for data", "lower", "time", _wait_share),
    ("utilization_mean", "device utilisation", "higher", "time", _summary("device_use.utilization_mean")),
    ("memory_peak_bytes", "device memory, peak", "lower", "time", _summary("device_use.memory_peak_bytes")),
    ("rss_peak_bytes", "host memory, peak", "lower", "time", _summary("host.rss_peak_bytes")),
    ("total_usd", "cost", "lower", "whole", _summary("cost.total_usd")),
    ("epoch_usd", "cost per epoch", "lower", "epoch", epoch_usd),
    ("point_usd", "cost per accuracy point", "lower", "accuracy", _point_usd),
    ("samples_per_usd", "samples per dollar", "higher", "time", _samples_per_usd),
)

# what a caveat takes the judgement from
_UNJUDGED = {
    "data": {"accuracy", "epoch", "whole"},
    "accuracy": {"accuracy"},
    "emulated": {"accuracy", "epoch", "whole", "time", "step"},
    "amount": {"accuracy", "whole"},
    "epoch": {"epoch"},
    "unfinished": {"whole"},
}


def _figures(sides: Sequence[Side], kinds: set[str]) -> list[Figure]:
    unjudged = {group for kind in kinds for group in _UNJUDGED.get(kind, ())}
    batches = {(side.settings.get("data.batch_size"), side.settings.get("data.batch_tokens")) for side in sides}
    if len(batches) > 1:
        unjudged.add("step")  # a larger batch takes longer and does more
    names = dict.fromkeys(name for side in sides for name in side.run.summary.get("accuracy") or {})
    learnt = [_learnt(name) for name in names if name != "best_epoch"]
    figures: list[Figure] = []
    for key, title, better, group, read in (*learnt, *_OTHERS):
        values = tuple(number(read(side)) for side in sides)
        if key == "rss_peak_bytes" and figures and figures[-1].values == values:
            continue  # the memory of a CPU is the host's
        if any(value is not None for value in values):
            figures.append(Figure(key, title, None if group in unjudged else better, values))
    return figures
