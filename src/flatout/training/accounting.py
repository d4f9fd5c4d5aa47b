"""What a run has taken so far, over all its ranks and attempts: loading, seconds, dollars; and its summaries."""

from flatout.cost import load_catalogue, spend_rates
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


class Accounting:
    """Of one attempt on this rank; rank 0 hears of the others at the end of every epoch."""

    def __init__(
        self,
        setup: Setup,
        ranks: Parallel,
        records: Records,
        recorder: Recorder,
        batches: RunBatches,
        identity: RunIdentity,
        trackers: Trackers,
    ) -> None:
        self._setup = setup
        self._ranks = ranks
        self._records = records
        self._recorder = recorder
        self._batches = batches
        self._identity = identity
        self._trackers = trackers
        self._others_stages = LoadStats()
        cost = setup.config.cost
        self._rates = spend_rates(cost, load_catalogue(cost.prices)) if ranks.rank == 0 else None

    def elapsed_seconds(self) -> float:
        """Of all attempts."""
        return self._records.earlier_seconds + self._recorder.wall_seconds()

    def spent_usd(self) -> float | None:
        """By the prices of the summary's ledger: all attempts, and requests to the store. None without a price, and on
        other ranks than rank 0."""
        if self._rates is None:
            return None
        data = self._records.data_totals(self._stages())
        return self._rates.spent_usd(self.elapsed_seconds(), data["store_requests"], data["store_bytes"])

    def record_quarantine(self) -> None:
        for split, failures in self._batches.quarantines():
            self._records.quarantine(split, failures)

    def collect_from_ranks(self) -> None:
        """What the other ranks' loaders did and found, at the end of an epoch. All ranks ask together."""
        if self._ranks.world_size == 1:
            return
        group, val_source = self._ranks.group, self._batches.val_source
        if val_source is not None:
            val_source.quarantine.update(share_failures(group, val_source.quarantine))
        own = {"stages": vars(self._own_stages()), "gpu": self._records.take_gpu(), "learnt": self._identity.learnt()}
        self._others_stages = LoadStats()
        for rank, each in enumerate(group.gather(own)[1:], 1):
            self._others_stages.add(LoadStats(**each["stages"]))
            self._identity.hear(each["learnt"])
            if each["gpu"] is not None:
                self._records.add_gpu(rank, each["gpu"])

    def summarise(self, status: str, cause: str | None, job: Job, digest: str | None = None) -> None:
        """Write summary.json, on rank 0; a status other than running is the last word of this attempt."""
        if self._ranks.rank != 0:
            return
        if status != "running":
            self._records.stop_monitors()
        shared, seen = self._batches.shared_summary(), job.progress.samples_seen
        summary = self._records.summarise(
            status, cause, self._recorder, self._stages(), seen, digest, shared, job.total_steps
        )
        if status != "running" and summary is not None:
            self._trackers.finish(summary)

    def summarise_failed_start(self, cause: str, samples_seen: int) -> None:
        """Before there is a job: a loader that cannot start."""
        self._records.summarise("failed", cause, self._recorder, self._stages(), samples_seen)

    def _stages(self) -> LoadStats:
        """Of all ranks, as far as this one knows."""
        stages = self._own_stages()
        stages.add(self._others_stages)
        return stages

    def _own_stages(self) -> LoadStats:
        stages = self._batches.stages()
        own = self._setup.dataset.store_counters()  # worker processes hand theirs over with each batch
        stages.store_requests += own.requests
        stages.store_bytes += own.bytes
        return stages
