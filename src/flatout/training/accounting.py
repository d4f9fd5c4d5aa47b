"""What a run has taken so far, over all its ranks and attempts: loading, seconds, dollars; and its summaries."""

from dataclasses import dataclass, field
from functools import cached_property

from flatout.cost import SpendRates, load_catalogue, spend_rates
from flatout.data.batch import LoadStats
from flatout.engine.loop import Job
from flatout.engine.parallel import Parallel
from flatout.engine.parallel.ranks import share_failures
from flatout.timeline import Recorder
from flatout.training.data_identity import RunIdentity
from flatout.training.records import Records
from flatout.training.setup import Setup
from flatout.training.sharing import RunBatches
from flatout.training.trackers import Trackers


@dataclass
class Accounting:
    """Of one attempt on this rank; rank 0 hears of the others at the end of every epoch."""

    setup: Setup
    ranks: Parallel
    records: Records
    recorder: Recorder
    batches: RunBatches
    identity: RunIdentity
    trackers: Trackers
    _others_stages: LoadStats = field(default_factory=LoadStats, init=False)

    @cached_property
    def _rates(self) -> SpendRates | None:
        """None without a price, and on other ranks than rank 0."""
        cost = self.setup.config.cost
        return spend_rates(cost, load_catalogue(cost.prices)) if self.ranks.rank == 0 else None

    def elapsed_seconds(self) -> float:
        """Of all attempts."""
        return self.records.earlier_seconds + self.recorder.wall_seconds()

    def spent_usd(self) -> float | None:
        """By the prices of the summary's ledger: all attempts, and requests to the store. None without a price, and on
        other ranks than rank 0."""
        if self._rates is None:
            return None
        data = self.records.data_totals(self._stages())
        return self._rates.spent_usd(self.elapsed_seconds(), data["store_requests"], data["store_bytes"])

    def record_quarantine(self) -> None:
        for split, failures in self.batches.quarantines():
            self.records.quarantine(split, failures)

    def collect_from_ranks(self) -> None:
        """What the other ranks' loaders did and found, at the end of an epoch. All ranks ask together."""
        if self.ranks.world_size == 1:
            return
        group, val_source = self.ranks.group, self.batches.val_source
        if val_source is not None:
            val_source.quarantine.update(share_failures(group, val_source.quarantine))
        own = {"stages": vars(self._own_stages()), "gpu": self.records.take_gpu(), "learnt": self.identity.learnt()}
        self._others_stages = LoadStats()
        for rank, each in enumerate(group.gather(own)[1:], 1):
            self._others_stages.add(LoadStats(**each["stages"]))
            self.identity.hear(each["learnt"])
            if each["gpu"] is not None:
                self.records.add_gpu(rank, each["gpu"])

    def summarise(self, status: str, cause: str | None, job: Job, digest: str | None = None) -> None:
        """Write summary.json, on rank 0; a status other than running is the last word of this attempt."""
        if self.ranks.rank != 0:
            return
        if status != "running":
            self.records.stop_monitors()
        shared, seen = self.batches.shared_summary(), job.progress.samples_seen
        summary = self.records.summarise(
            status, cause, self.recorder, self._stages(), seen, digest, shared, job.total_steps
        )
        if status != "running" and summary is not None:
            self.trackers.finish(summary)

    def summarise_failed_start(self, cause: str, samples_seen: int) -> None:
        """Before there is a job: a loader that cannot start."""
        self.records.summarise("failed", cause, self.recorder, self._stages(), samples_seen)

    def _stages(self) -> LoadStats:
        """Of all ranks, as far as this one knows."""
        stages = self._own_stages()
        stages.add(self._others_stages)
        return stages

    def _own_stages(self) -> LoadStats:
        stages = self.batches.stages()
        own = self.setup.dataset.store_counters()  # worker processes hand theirs over with each batch
        stages.store_requests += own.requests
        stages.store_bytes += own.bytes
        return stages
