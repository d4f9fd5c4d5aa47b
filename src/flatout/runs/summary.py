"""From records to summary.json: pure, so that a dead run can be summed up as well as a finished one."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def throughput(step_seconds: Sequence[float], samples: Sequence[int]) -> dict[str, Any]:
    """Over all steps that count; null where there are none."""
    ordered = sorted(step_seconds)
    return speed(len(ordered), sum(step_seconds), sum(samples), lambda share: quantile(ordered, share))


def speed(count: int, seconds: float, samples: int, quantile: Callable[[float], float]) -> dict[str, Any]:
    """The summary's section from sums; `quantile` is asked for the step time that a share of the steps stay below."""
    if not count or seconds <= 0:
        return {"samples_per_second": None, "steps_per_second": None, "step_seconds": None}
    return {
        "samples_per_second": samples / seconds,
        "steps_per_second": count / seconds,
        "step_seconds": {"mean": seconds / count, "p50": quantile(0.5), "p95": quantile(0.95)},
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest of an ascending sequence."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def accuracy(epochs: Sequence[Mapping[str, str]], metric: str, higher_is_better: bool) -> dict[str, Any]:
    """Figures of the last validation, and which epoch was best by the chosen metric."""

    def last(name: str) -> float | None:
        return next((_finite(row[name]) for row in reversed(epochs) if row.get(name)), None)

    values = [(_finite(row[metric]), int(row["epoch"])) for row in epochs if row.get(metric)]
    rated = [(value, epoch) for value, epoch in values if value is not None]
    pick = max if higher_is_better else min
    best = pick(rated, key=lambda each: each[0]) if rated else None
    names = ("top1", "top5", "bleu", "val_loss", "train_loss")
    return {**{name: last(name) for name in names}, "best_epoch": best[1] if best else None}


def _finite(text: str) -> float | None:
    """JSON has no NaN, and a metric that is none cannot be the best."""
    value = float(text)
    return value if math.isfinite(value) else None


def add_parts(attempts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of every part over all attempts."""
    total: dict[str, float] = {}
    for parts in attempts:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def busy_fraction(seconds: Mapping[str, float], wall_seconds: float) -> float | None:
    """Share of the wall clock in which the device computed for training steps."""
    busy = sum(seconds.get(name, 0.0) for name in ("forward", "backward", "optimizer"))
    return busy / wall_seconds if wall_seconds > 0 and busy > 0 else None
