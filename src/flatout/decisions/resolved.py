"""Everything that was decided for one attempt at a run, as one value and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from flatout.decisions.batches import BatchChoice
from flatout.decisions.caching import CacheChoice
from flatout.decisions.choice import Choice
from flatout.decisions.loading import DataDecisions
from flatout.decisions.speedups import NO_METHODS, NO_SPEEDUPS

D = TypeVar("D")
NO_KERNELS: Choice[str] = Choice("torch", "not recorded")


@dataclass(frozen=True)
class TrainDecisions:
    precision: Choice[str]
    log_every: Choice[int]
    optimizer: Choice[dict[str, Any]]
    """Its name and arguments."""
    kernels: Choice[str] = NO_KERNELS


@dataclass(frozen=True)
class ParallelDecisions:
    interface: Choice[str | None]


@dataclass(frozen=True)
class MonitorDecisions:
    interface: Choice[str | None]


@dataclass(frozen=True)
class Resolved:
    """Named and nested as the keys of a recipe: what `data.workers` became is `data.workers` here."""

    device: Choice[str]
    threads: Choice[int]
    batch: BatchChoice
    data: DataDecisions
    train: TrainDecisions
    parallel: ParallelDecisions
    monitor: MonitorDecisions
    speedups: Choice[dict[str, Any]] = NO_SPEEDUPS
    """Keys that `speedups: auto` switched on, with their values."""
    methods: Choice[dict[str, Any]] = NO_METHODS
    """Switches of docs/faster.md away from their defaults, with their values."""

    def to_dict(self) -> dict[str, Any]:
        """Of JSON's own types once dumped; tuples become lists."""
        return asdict(self)

    def find(self, key: str) -> Any:
        """The choice of a recipe's key, as in `data.workers`; an AttributeError where nothing is decided about it."""
        found: Any = self
        for name in key.split("."):
            found = getattr(found, name)
        return found


def overlay(assumed: D, told: Any) -> D:
    """`assumed`, with every choice that `told` (JSON of a run's file) has in a shape that fits. What is missing, torn,
    or of a newer kind leaves the assumption."""
    if not isinstance(told, Mapping):
        return assumed
    changes: dict[str, Any] = {}
    for each in fields(assumed):  # type: ignore[arg-type]
        inner: Any = getattr(assumed, each.name)
        value = told.get(each.name)
        if each.name == "cache" and "cache" in told:  # with an older form of its own
            changes["cache"] = CacheChoice.from_dict(value)
        elif is_dataclass(inner) and not hasattr(inner, "value"):
            changes[each.name] = overlay(inner, value)
        elif is_dataclass(inner) and isinstance(value, Mapping) and _fits(inner, value):
            known = {one.name for one in fields(inner)} & value.keys()
            changes[each.name] = replace(inner, **{name: value[name] for name in known})  # type: ignore[type-var]
    return replace(assumed, **changes)  # type: ignore[type-var]


def _fits(inner: Any, told: Mapping[str, Any]) -> bool:
    """Whether a choice of a file may stand for the one that is assumed: fields of the same types."""
    if "value" not in told or not isinstance(told.get("reason"), str):
        return False
    return all(
        _same_kind(getattr(inner, each.name), told[each.name])
        for each in fields(inner)
        if each.name in told and each.name not in ("wanted", "slices")
    )


def _same_kind(assumed: Any, told: Any) -> bool:
    if assumed is None:
        return told is None or isinstance(told, str | int | float)
    if isinstance(assumed, bool) or isinstance(told, bool):
        return isinstance(assumed, bool) and isinstance(told, bool)
    if isinstance(assumed, int | float):
        return isinstance(told, int | float)
    return isinstance(told, type(assumed))
