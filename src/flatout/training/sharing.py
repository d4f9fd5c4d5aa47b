"""The batches of a run: from loaders of its own, or shared with other jobs; and what sharing adds to its bill."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cost import Usage
from flatout.data.batch import BatchSource, Failure, LoadStats
from flatout.data.loading.prepare import BatchPlan
from flatout.decisions import Choice
from flatout.decisions.caching import is_off
from flatout.decisions.loading import choose_sharing
from flatout.timeline import Recorder
from flatout.training.setup import Setup

if TYPE_CHECKING:
    from flatout.service.client.pool import SharedPool


class RunBatches:
    """The batches of one attempt on this rank. Nothing is loaded before `open_train` and `open_val`."""

    def __init__(self, setup: Setup) -> None:
        self.val_source: BatchSource | None = None
        self._setup = setup
        self._source: BatchSource | None = None
        self._pool: SharedPool | None = None

    @property
    def source(self) -> BatchSource:
        """Of training batches."""
        assert self._source is not None, "open_train comes first"
        return self._source

    def open_train(self, workers: Choice[int], epochs: int, recorder: Recorder, run: Path) -> None:
        """`epochs` are those still to come."""
        config, opened, kind = self._setup.config, self._setup.opened, self._setup.device.kind
        if is_off(choose_sharing(config.data.shared).value):
            self._source = opened.open_source(opened.plan, config.data, workers, True, kind, recorder, epochs=epochs)
            return
        from flatout.service.client.opening import open_shared_loader  # a run that does not share does not pay for it

        assert isinstance(opened.plan, BatchPlan), "data.shared is a key of tasks with images"
        self._source, self._pool = open_shared_loader(
            opened.plan,
            config.data,
            workers,
            kind,
            epochs=config.epochs_to_train,
            order_file=run / "shared_order.json",
            recorder=recorder,
        )

    def open_val(self, workers: Choice[int], epochs: int) -> None:
        """After `open_train`: it takes the memory that is left. Nothing happens without a validation split."""
        config, opened = self._setup.config, self._setup.opened
        if opened.val_plan is not None:
            self.val_source = opened.open_source(
                opened.val_plan,
                config.data,
                min(workers.value, 1),
                False,
                self._setup.device.kind,
                memory_taken=self.source.memory_bytes,
                epochs=math.ceil(epochs / config.validate_.every_epochs),
            )

    def stages(self) -> LoadStats:
        """What loading took on this rank in this attempt."""
        stages = LoadStats()
        for source in self._opened():
            stages.add(source.stages)
        return stages

    def quarantines(self) -> Iterator[tuple[str, dict[int, Failure]]]:
        """Unusable samples that were met so far, by split."""
        for split, source in (("train", self._source), ("val", self.val_source)):
            if source is not None and source.quarantine:
                yield split, source.quarantine

    def shared_summary(self) -> dict[str, Any] | None:
        """What sharing did; None where nothing is shared."""
        if self._pool is None:
            return None
        return {**self._pool.summary(), "served_from": choose_sharing(self._setup.config.data.shared).value}

    def close(self) -> None:
        for source in self._opened():
            source.close()

    def _opened(self) -> list[BatchSource]:
        return [source for source in (self._source, self.val_source) if source is not None]


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
