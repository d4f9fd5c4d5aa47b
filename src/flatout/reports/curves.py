"""Learning curves, step times and the machine's use as charts."""

import math
import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from flatout.analysis.details import Details, numbers
from flatout.config.tasks import Metric, metric_named
from flatout.reports.charts import Point, Series, line_chart, scatter_chart
from flatout.reports.page import join_markup
from flatout.runs.system import SYSTEM_COLUMNS
from flatout.runs.tables import EPOCH_COLUMNS

_MOST_SERIES = 8
_LEVELS = ("rss", "memory", "swap", "shm")
_TIME_UNITS = (("seconds", 1.0), ("minutes", 60.0), ("hours", 3600.0))
_TITLES = {
    "process_cores": "Cores the run uses",
    "process_waiting_cores": "Cores the run waits for",
    "cgroup_memory_bytes": "Memory of the control group",
}
_NOT_METRICS = (*EPOCH_COLUMNS, "val_loss")


def curve_charts(details: Details) -> Markup:
    """Loss, metrics, learning rate and step time; those that have values."""
    epochs, steps = details.run.epochs, details.run.steps
    ends = [end if end is not None else n + 1.0 for n, end in enumerate(numbers(epochs, "step"))]
    marks = [(at, f"end of epoch {int(row['epoch']) + 1}") for at, row in zip(ends, epochs, strict=True)][-200:]
    at = [float(row.step) for row in steps]
    loss = [
        Series("each step", _points(at, [row.loss for row in steps]), "s7", faint=True),
        Series("training, by epoch", _points(ends, numbers(epochs, "train_loss")), "s0", dots=True),
        Series("validation", _points(ends, numbers(epochs, "val_loss")), "s1", dots=True),
    ]
    by_step = [row.learning_rate for row in steps]
    by_epoch = numbers(epochs, "learning_rate")  # an imported log may have epochs alone
    rates = Series("learning rate", _points(at, by_step) if steps else _points(ends, by_epoch), "s3")
    unit, factor = _second_unit(details)
    waits = _scaled(at, [row.data_wait_seconds for row in steps], factor)
    times = [
        Series("step", _scaled(at, [row.step_seconds for row in steps], factor), "s0"),
        Series("of it, waiting for data", waits, "data_wait"),
    ]
    charts = [
        line_chart("Loss", [s for s in loss if _has_values(s)], "step", marks=marks),
        _metrics(epochs),
        line_chart("Learning rate", [rates], "step", from_zero=True, marks=marks),
        line_chart("Step time", times, "step", unit, from_zero=True, marks=marks),
    ]
    return Markup('<div class="pair">{}</div>').format(join_markup(charts))


def _second_unit(details: Details) -> tuple[str, float]:
    """How step times are best written: unit and factor."""
    median = ((details.run.summary.get("throughput") or {}).get("step_seconds") or {}).get("p50") or 1.0
    return (" s", 1.0) if median >= 0.5 else (" ms", 1e3)


def _metrics(epochs: Sequence[Mapping[str, str]]) -> Markup:
    """One chart for all metrics of one unit, accuracies first."""
    names = [name for name in (epochs[-1] if epochs else {}) if name not in _NOT_METRICS]
    by_unit: dict[str, list[Metric]] = {}
    for name in names:
        by_unit.setdefault(metric_named(name).unit, []).append(metric_named(name))
    at = [int(row["epoch"]) + 1.0 for row in epochs]
    return join_markup(
        line_chart(
            "Accuracy" if unit == " %" else ", ".join(metric.title for metric in metrics),
            [Series(m.title, _scaled(at, numbers(epochs, m.name), m.factor), dots=True) for m in metrics],
            "epoch",
            unit if unit == " %" else "",
        )
        for unit, metrics in by_unit.items()
    )


def _points(at: Sequence[float], values: Sequence[float | None]) -> list[Point]:
    """Without the steps whose value was not read, or is no number: a curve goes on across them."""
    return [(x, y) for x, y in zip(at, values, strict=True) if y is not None and math.isfinite(y)]


def _scaled(at: Sequence[float], values: Sequence[float | None], factor: float) -> list[Point]:
    return [(x, None if y is None else factor * y) for x, y in zip(at, values, strict=True)]


def _has_values(series: Series) -> bool:
    return any(y is not None for _, y in series.points)


def network_chart(details: Details, points: Sequence[tuple[float, float]]) -> Markup:
    """Each step as a dot: did those that took long move more, or wait for a link that was full?"""
    unit, factor = _second_unit(details)
    megabits: list[Point] = [(bits / 1e6, factor * seconds) for bits, seconds in points]
    if not any(bits for bits, _ in points):
        return Markup("")
    return scatter_chart("Step time against network use", megabits, "Mb/s", "step", unit)


def resource_charts(system: Sequence[Mapping[str, str]]) -> Markup:
    """One chart for every kind of column in system.csv, whatever the machine has; blanks are gaps."""
    if not system:
        return Markup("")
    start = next((t for t in numbers(system, "time_unix") if t is not None), 0.0)
    clock = [None if t is None else t - start for t in numbers(system, "time_unix")]
    unit_name, unit_seconds = time_axis(max((t for t in clock if t is not None), default=0.0))
    at_times = [None if t is None else t / unit_seconds for t in clock]
    seconds = numbers(system, "interval_seconds")
    groups: dict[tuple[str, str], list[Series]] = {}
    for name in system[0]:
        title, unit, factor, per_second = _kind(name)
        values = numbers(system, name)
        if title and any(values):  # what was never read, or zero all the time, shows nothing
            points: list[Point] = [
                (
                    at,
                    None if value is None or (per_second and not length) else _rated(value, length, factor, per_second),
                )
                for at, value, length in zip(at_times, values, seconds, strict=True)
                if at is not None
            ]
            groups.setdefault((title, unit), []).append(Series(_label(name), points))
    charts = [_resource_chart(title, unit, series, unit_name) for (title, unit), series in groups.items()]
    return Markup('<div class="pair">{}</div>').format(join_markup(charts))


def _rated(value: float, length: float | None, factor: float, per_second: bool) -> float:
    return factor * value / length if per_second and length else factor * value


def time_axis(longest_seconds: float) -> tuple[str, float]:
    """Name and seconds of the unit in which an axis of time reads best."""
    return next((each for each in _TIME_UNITS if longest_seconds < 300 * each[1]), _TIME_UNITS[-1])


def _resource_chart(title: str, unit: str, series: Sequence[Series], x_label: str) -> Markup:
    cores = [s for s in series if re.fullmatch(r"cpu\d+", s.name)]
    shown = [s for s in series if s not in cores] if len(cores) > _MOST_SERIES - 2 else list(series)
    left_out = len(series) - len(shown[:_MOST_SERIES])
    note = f"{left_out} more in system.csv" if left_out else ""
    return line_chart(title, shown[:_MOST_SERIES], x_label, unit, note, from_zero=True, height=150)


def _kind(column: str) -> tuple[str, str, float, bool]:
    """Title of the chart, unit, factor and whether the column counts per interval; no title: not a reading."""
    if column in SYSTEM_COLUMNS:
        return "", "", 1, False
    device = re.split(r"\d|_", column, maxsplit=1)[0]
    name = {"nic": "Network", "disk": "Disk", "gpu": "GPU", "cpu": "CPU"}.get(device, device.replace("_", " ").title())
    if column.endswith("_bytes"):
        flows = device in ("nic", "disk")
        place = "Memory of the machine" if device in _LEVELS else _TITLES.get(column, name)
        return (
            (name, " MB/s", 1e-6, True)
            if flows
            else (f"{place}{' memory' if device == 'gpu' else ''}", " GB", 1e-9, False)
        )
    for suffix, title, unit in (
        ("_watts", "power", " W"),
        ("_celsius", "temperature", " °C"),
        ("_mhz", "clock", " MHz"),
    ):
        if column.endswith(suffix):
            return f"{name} {title}", unit, 1, False
    if column.endswith("_seconds"):
        return f"{name} {column.removeprefix(device).strip('_').replace('_', ' ')}", " s", 1, False
    if device == "cpu" or column.endswith(("_utilization", "_busy", "_fraction")):
        return f"{name} use", " %", 100, False
    return _TITLES.get(column) or column.replace("_", " ").capitalize(), "", 1, False


def _label(column: str) -> str:
    short = re.sub(r"_(bytes|watts|celsius|mhz|seconds|utilization)$", "", column)
    return re.sub(r"^nic_|^disk_", "", short).replace("_", " ")
