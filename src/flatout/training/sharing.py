"""The training batches of a run: from a loader of its own, or shared with other jobs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.config.schema import Config
from flatout.cost import Usage
from flatout.data.batch import BatchSource
from flatout.data.loading.prepare import BatchPlan
from flatout.decisions import Choice
from flatout.decisions.caching import is_off
from flatout.decisions.loading import choose_sharing
from flatout.tasks.setup import AnyPlan, open_source
from flatout.timeline import Recorder

if TYPE_CHECKING:
    from flatout.service.client.pool import SharedPool


class TrainingData:
    """The loader, and what sharing did for it where it is shared."""

    def __init__(self, loader: BatchSource, pool: "SharedPool | None" = None, served_from: str | None = None) -> None:
        self.loader = loader
        self._pool = pool
        self._served_from = served_from

    def summary(self) -> dict[str, Any] | None:
        return None if self._pool is None else {**self._pool.summary(), "served_from": self._served_from}


def open_training_data(
    recipe: AnyPlan, config: Config, workers: Choice[int], device_kind: str, recorder: Recorder, run: Path, epochs: int
) -> TrainingData:
    """`epochs` are those still to come."""
    data, sharing = config.data, choose_sharing(config.data.shared).value
    if is_off(sharing) or not isinstance(recipe, BatchPlan):
        return TrainingData(open_source(recipe, data, workers, True, device_kind, recorder, epochs=epochs))
    from flatout.service.client.opening import open_shared_loader  # a run that does not share does not pay for it

    order_file = run / "shared_order.json"
    loader, pool = open_shared_loader(
        recipe, data, workers, device_kind, epochs=config.train.epochs, order_file=order_file, recorder=recorder
    )
    return TrainingData(loader, pool, sharing)


def add_shared(earlier: Mapping[str, Any], now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Totals over all attempts; what is not a number is the newest."""
    if now is None:
        return dict(earlier) or None
    return {
        name: value + (earlier.get(name) or 0)
        if isinstance(value, int | float) and not name.startswith("most_")
        else value
        for name, value in now.items()
    }


def with_shares(usage: Usage, shared: Mapping[str, Any] | None) -> Usage:
    """Coordinator and cache are paid by all jobs that use them: each its part. A run that shares nothing pays whole."""
    if not shared or not shared.get("share_seconds"):
        return usage
    seconds = min(usage.training_seconds, float(shared["share_seconds"]))
    return replace(
        usage,
        coordinator_seconds=seconds if usage.coordinator_seconds else 0.0,
        cache_seconds=seconds if usage.cache_seconds else 0.0,
        cache_stored_byte_seconds=float(shared.get("share_byte_seconds") or 0.0),
        cache_transferred_bytes=float(shared.get("bytes") or 0.0),
        function_gb_seconds=float(shared.get("share_gb_seconds") or 0.0),
        function_requests=float(shared.get("share_requests") or 0.0),
    )
