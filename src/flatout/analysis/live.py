"""What can be said of a run while it goes on: progress, speed, what is left, what it will cost, and alarms."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flatout.config.tasks import metric_named
from flatout.runs.following import Floats
from flatout.units import format_seconds, format_usd

_STARVED = 0.3
_STALLED_STEPS = 20
_STALLED_SECONDS = 60.0
_BUDGET_SHARE = 0.8
_STEP, _TIME, _SAMPLES, _LOSS, _RATE, _SECONDS, _WAIT = range(7)  # columns of StepFollower.recent


@dataclass(frozen=True)
class LiveFigures:
    """One row of the list of runs. None where it is not known (yet)."""

    step: int | None = None
    total_steps: int | None = None
    progress: float | None = None
    """From 0 to 1."""
    seconds_left: float | None = None
    metric: str | None = None
    metric_text: str | None = None
    metric_value: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    data_wait: float | None = None
    """Share of the last steps; of a run that has ended, of its wall clock."""
    wall_seconds: float | None = None
    usd: float | None = None
    usd_left: float | None = None
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Alarm:
    """Something that costs money while nobody looks. `key` stays the same while it lasts."""

    key: str
    text: str


def live_figures(
    summary: Mapping[str, Any], recent: Floats, status: str, usd_per_second: float | None, now_unix: float
) -> LiveFigures:
    """`recent` are the last steps of a run that goes on (none are needed of one that has ended); `usd_per_second` is
    what its machines cost."""
    total = summary.get("total_steps")
    step = int(recent[-1, _STEP]) if len(recent) else None
    running = status == "running"
    speed = _speed(recent) if running else (summary.get("throughput") or {}).get("samples_per_second")
    left = _seconds_left(recent, step, total) if running else None
    wall = (summary.get("time") or {}).get("wall_seconds")
    usd = (summary.get("cost") or {}).get("total_usd")
    if running:
        since = max(0.0, now_unix - float(summary.get("updated_unix") or now_unix))
        wall = None if wall is None else wall + since
        usd = None if usd_per_second is None else (usd or 0.0) + since * usd_per_second
    name, value, text = _metric(summary)
    wait = _wait(recent) if running else _wait_of_all(summary)
    return LiveFigures(
        step=step,
        total_steps=total,
        progress=1.0 if status == "completed" else min(1.0, step / total) if step and total else None,
        seconds_left=left,
        metric=name,
        metric_text=text,
        metric_value=value,
        loss=_finite(recent[-1, _LOSS]) if len(recent) else (summary.get("accuracy") or {}).get("train_loss"),
        samples_per_second=speed,
        data_wait=wait,
        wall_seconds=wall,
        usd=usd,
        usd_left=None if left is None or usd_per_second is None else left * usd_per_second,
        hint=f"waits for data {100 * wait:.0f} % of the time" if running and wait and wait > _STARVED else "",
    )


def alarms(
    figures: LiveFigures,
    recent: Floats,
    status: str,
    max_usd: float | None,
    now_unix: float,
    findings: Mapping[str, str],
) -> list[Alarm]:
    """`findings` are the urgent ones of `flatout explain` by their id, with their title."""
    found = []
    if len(recent) and math.isinf(recent[-1, _LOSS]):
        found.append(Alarm("not-finite", f"the loss of step {figures.step} is not finite"))
    if status == "running" and figures.hint:
        found.append(Alarm("starved", f"the device {figures.hint}"))
    if status == "running" and len(recent) > 2:
        quiet, usual = now_unix - recent[-1, _TIME], float(_median(recent[:, _SECONDS]))
        if quiet > max(_STALLED_SECONDS, _STALLED_STEPS * usual):
            found.append(Alarm("stalled", f"no step for {format_seconds(quiet)}; one takes {format_seconds(usual)}"))
    if max_usd and figures.usd is not None and figures.usd > _BUDGET_SHARE * max_usd:
        found.append(Alarm("budget", f"{format_usd(figures.usd)} of {format_usd(max_usd)} (stop.max_usd) are spent"))
    found += [Alarm(f"finding-{key}", title) for key, title in findings.items()]
    return found


def _speed(recent: Floats) -> float | None:
    seconds = float(recent[:, _SECONDS].sum()) if len(recent) else 0.0
    return _finite(float(recent[:, _SAMPLES].sum()) / seconds) if seconds > 0 else None


def _wait(recent: Floats) -> float | None:
    seconds = float(recent[:, _SECONDS].sum()) if len(recent) else 0.0
    waited = _finite(float(recent[:, _WAIT].sum()))
    return min(1.0, waited / seconds) if seconds > 0 and waited is not None else None


def _wait_of_all(summary: Mapping[str, Any]) -> float | None:
    time = summary.get("time") or {}
    waited, wall = (time.get("parts") or {}).get("data_wait"), time.get("wall_seconds")
    return waited / wall if waited is not None and wall else None


def _seconds_left(recent: Floats, step: int | None, total: int | None) -> float | None:
    """By the time from step to step, in which validations and checkpoints are as often as they were lately."""
    if step is None or not total or len(recent) < 2:
        return None
    pace = (recent[-1, _TIME] - recent[0, _TIME]) / max(1.0, recent[-1, _STEP] - recent[0, _STEP])
    return max(0.0, (total - step) * float(pace)) if math.isfinite(pace) else None


def _metric(summary: Mapping[str, Any]) -> tuple[str | None, float | None, str | None]:
    found = summary.get("accuracy") or {}
    for name in ("top1", "bleu", "val_loss"):
        value = found.get(name)
        if value is not None:
            return metric_named(name).title, value, metric_named(name).write(value)
    return None, None, None


def _median(values: Floats) -> float:
    ordered = sorted(float(each) for each in values if math.isfinite(each))
    return ordered[len(ordered) // 2] if ordered else math.inf


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
