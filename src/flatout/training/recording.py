"""Writes a run's records while it goes on, and its summary at every turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from flatout.analysis.convergence import judge
from flatout.config.loading import config_digest
from flatout.config.schema import Config
from flatout.config.tasks import Metric, metric_named
from flatout.cost import load_catalogue, run_usage, usage_cost
from flatout.data.batch import AnyDataset, Failure, LoadStats
from flatout.data.source.dataset import some_files
from flatout.data.source.readers import Reader
from flatout.decisions import Choice
from flatout.engine.devices import Device
from flatout.engine.progress import EpochRecord, StepRecord
from flatout.runs.directory import RunDirectory, write_json
from flatout.runs.reading import read_epochs, read_link, read_quarantine, read_summary
from flatout.runs.rebuilding import checkpoint_files
from flatout.runs.step_totals import Steps, StepTotals, read_steps
from flatout.runs.steps import STEP_COLUMNS
from flatout.runs.summary import accuracy, add_parts, busy_fraction, throughput
from flatout.runs.tables import EPOCH_COLUMNS, QUARANTINE_COLUMNS, Table, cell, effective_rows
from flatout.timeline import Recorder
from flatout.timeline.reading import read_attempts
from flatout.timeline.startup import StartupClock
from flatout.training.decided import NO_MONITOR
from flatout.training.monitoring import SystemRecords
from flatout.training.sharing import add_shared, with_shares

_IMPORTED_UNIX = time.time()  # torch and all else that is heavy is loaded before this file


class RunRecords:
    """The growing tables of one run, over all its attempts; rank 0 has them (training/records.py)."""

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        dataset: AnyDataset,
        device: Device,
        schedule: str,
        world_size: int = 1,
        startup: StartupClock | None = None,
    ) -> None:
        self._schedule = schedule
        self._startup = startup or StartupClock()
        self._stepped = False  # in this attempt
        self._world_size = world_size
        self._link: dict[str, Any] = read_link(directory)  # of this attempt once it is measured
        self._optimizer: dict[str, Any] = {}  # as it is when training begins
        self._directory = directory
        self._config = config
        self._dataset = dataset
        self._device = device
        before = read_summary(directory)
        self.attempt = int(before.get("attempts") or 0) + 1
        self.completed = before.get("status") == "completed"
        earlier = read_attempts(directory.spans / "rank0.jsonl")
        self.earlier_seconds = sum(each.wall_seconds for each in earlier)
        self._earlier_parts = [each.parts for each in earlier]
        self._earlier_data = before.get("data") or {}
        self._data_changes: list[str] = list(before.get("data_changes") or [])  # that were accepted
        self._earlier_shared = before.get("shared") or {}
        self._earlier_checkpoint_seconds = (before.get("checkpoint") or {}).get("seconds") or 0.0
        self._system = SystemRecords(directory, config, device, self.attempt)
        self._steps = Table(directory.steps, STEP_COLUMNS)
        self._epochs = Table(directory.epochs, EPOCH_COLUMNS)
        self._quarantine = Table(directory.quarantine, QUARANTINE_COLUMNS)
        self._catalogue = load_catalogue(config.cost.prices)
        self._earlier_steps: Steps | None = read_steps(directory.steps)  # until it is known which are done again
        self._totals = StepTotals(self._earlier_steps)
        self._epoch_rows = read_epochs(directory)
        self._looked_at = {"train": 0, "val": 0}  # unusable samples of each split
        self._quarantined = read_quarantine(directory)

    def begin(
        self,
        optimizer: Mapping[str, Any],
        interface: str | None,
        clock: Callable[[], float],
        say: Callable[[str], None],
        near_pids: Sequence[int] = (),
    ) -> None:
        """Before the first step. `interface` leads to the other ranks, where there are any; `clock` is this attempt's,
        in seconds; `near_pids` are the ranks on this machine, whose CPU time is this run's."""
        self._optimizer = dict(optimizer)
        self._system.rank_interface = interface
        self._system.near_pids = tuple(near_pids)
        self._system.start(clock, say)

    def accept_data_changes(self, changes: Sequence[str]) -> None:
        """Changes of the dataset since the checkpoint that the user accepted."""
        self._data_changes += changes

    def keep_link(self, link: Mapping[str, Any]) -> None:
        """What was measured of the link between the ranks."""
        write_json(self._directory.link, link)
        self._link = dict(link)

    def monitored_interface(self) -> Choice[str | None]:
        """Whose traffic counts as that of the training."""
        return NO_MONITOR if self._config.monitor.interval_seconds is None else self._system.interface()

    def take_gpu(self) -> None:
        """Readings of this rank's GPU since the last call, for rank 0; on rank 0 the monitor writes them itself."""

    def add_gpu(self, rank: int, said: Mapping[str, Any]) -> None:
        """What `take_gpu` gave on another rank."""
        self._system.add_rank(rank, said)

    def stop_monitors(self) -> None:
        self._system.stop()

    def step(self, record: StepRecord) -> None:
        if not self._stepped:
            self._stepped = True
            self._startup.add("first_batch", record.data_wait_seconds)
        row = {"attempt": self.attempt, **vars(record)}  # asdict costs more than all the rest
        row |= row.pop("group_rates")
        self._steps.append(row)
        if self._earlier_steps is not None:
            self._earlier_steps.drop_from(record.step)
            self._totals, self._earlier_steps = StepTotals(self._earlier_steps), None
        self._totals.add(record.step_seconds, record.samples)

    def epoch(self, record: EpochRecord) -> None:
        row = {"attempt": self.attempt, **vars(record)}
        row |= row.pop("metrics")
        self._epochs.append(row)
        as_read = {name: cell(value) for name, value in row.items()}
        self._epoch_rows = effective_rows([*self._epoch_rows, as_read], "epoch")

    def quarantine(self, split: str, failures: dict[int, Failure]) -> None:
        """Each unusable sample once, however often it is met. `failures` only grows, at its end: asked for at every
        step, only what is new is looked at."""
        new = list(islice(reversed(failures.items()), len(failures) - self._looked_at[split]))
        self._looked_at[split] = len(failures)
        for sample_id, failure in reversed(new):
            if (split, sample_id) not in self._quarantined:
                self._quarantined.add((split, sample_id))
                self._quarantine.append(
                    {"split": split, "sample_id": sample_id, "name": failure.name, "reason": failure.reason}
                )

    def summarise(
        self,
        status: str,
        cause: str | None,
        recorder: Recorder,
        stages: LoadStats,
        samples_seen: int,
        state_digest: str | None = None,
        shared: Mapping[str, Any] | None = None,
        total_steps: int | None = None,
    ) -> dict[str, Any]:
        """Write summary.json from what is recorded so far; what this run cannot measure is null.

        Constant work while the run goes on; when it ends, its steps are read once for exact quantiles.
        """
        wall_seconds = self.earlier_seconds + recorder.wall_seconds()
        parts = add_parts([*self._earlier_parts, recorder.totals()])
        cost, import_seconds = self._config.cost, _import_seconds(recorder)
        shared = add_shared(self._earlier_shared, shared)
        usage = with_shares(run_usage(wall_seconds, cost, self.data_totals(stages)), shared)
        ledger, metric = usage_cost(usage, cost, self._catalogue), metric_named(self._config.checkpoint.metric)
        summary = {
            "run": self._config.name,
            "task": self._config.task,
            "status": status,
            "cause": cause,
            "updated_unix": time.time(),
            "device": {
                "name": self._device.name,
                "emulated": self._device.kind == "emulated",
                "count": self._world_size,
            },
            "world_size": self._world_size,
            "config_digest": config_digest(self._config),
            **self._fingerprints(),
            "state_digest": state_digest,
            "attempts": self.attempt,
            "samples_seen": samples_seen,
            "total_steps": total_steps,
            "accuracy": accuracy(self._epoch_rows, metric.name, metric.higher_is_better),
            "convergence": self._convergence(metric),
            "learning_rate": {"schedule": self._schedule},
            "optimizer": self._optimizer,
            "throughput": self._totals.throughput() if status == "running" else self._exact_throughput(),
            "time": {
                "wall_seconds": wall_seconds,
                "parts": parts,
                "import_seconds": import_seconds,
                "startup_parts": self._startup.parts(recorder.totals()["startup"], import_seconds),
            },
            "data": self._data(stages),
            "shared": shared,
            **self._system_sections(
                busy_fraction(parts, wall_seconds)  # a CPU or an emulated device computes in the spans
                if recorder.device_clock is None
                else busy_fraction(recorder.device_seconds, recorder.wall_seconds())
            ),
            "checkpoint": {
                **checkpoint_files(self._directory),
                "seconds": self._earlier_checkpoint_seconds + recorder.totals()["checkpoint"],
            },
            "cost": ledger.to_dict(),
        }
        recorder.flush()  # so that what a kill leaves behind knows at least as much as this summary
        write_json(self._directory.cost, ledger.to_dict())
        write_json(self._directory.summary, summary)
        return summary

    def _fingerprints(self) -> dict[str, Any]:
        """Of the content once all of it was read. Only two of the same kind can be compared."""
        content, accepted = self._dataset.content_fingerprint(), self._dataset.changed_names()
        changes = [*self._data_changes]
        if accepted:
            changes.append(f"{some_files(accepted, ' changed while the run read them')}; accepted")
        return {
            "data_fingerprint": content or self._dataset.fingerprint,
            "data_fingerprint_by": "content" if content else "names and sizes",
            "data_names_fingerprint": self._dataset.fingerprint,
            "data_changes": changes,
        }

    def _system_sections(self, busy: float | None) -> dict[str, Any]:
        """What the monitors say; between ranks, the link is what was measured."""
        sections = self._system.sections(busy)
        if self._link:
            names = ("bits_per_second", "cap_bits_per_second")
            sections["network"] |= {f"link_{name}": self._link.get(name) for name in names}
        return sections

    def follow(self) -> None:
        """The run's directory is another one now."""
        self._steps.follow(self._directory.steps)
        self._epochs.follow(self._directory.epochs)
        self._quarantine.follow(self._directory.quarantine)
        self._system.follow()

    def close(self) -> None:
        self._system.close()
        for table in (self._steps, self._epochs, self._quarantine):
            table.close()

    def _exact_throughput(self) -> dict[str, Any]:
        steps = read_steps(self._directory.steps)
        return throughput(steps.seconds, steps.samples)

    def _convergence(self, metric: Metric) -> dict[str, Any]:
        train = self._config.train
        return judge(
            self._epoch_rows,
            metric,
            classes=len(self._dataset.classes) or None,
            planned_epochs=train.epochs,
            peak_learning_rate=train.lr,
            emulated=self._device.kind == "emulated",
        ).to_dict()

    def data_totals(self, stages: LoadStats) -> dict[str, Any]:
        """Over all attempts; of one that was killed, what its last summary knew."""
        counts = ("bytes_read", "cache_hits", "cache_misses", "store_requests", "store_bytes")
        now = {name if name in counts else f"{name}_seconds": value for name, value in vars(stages).items()}
        return {name: value + (self._earlier_data.get(name) or 0) for name, value in now.items()}

    def _data(self, stages: LoadStats) -> dict[str, Any]:
        splits = {"train": self._dataset.train, "val": self._dataset.val}
        return {
            "samples_total": sum(len(split) for split in splits.values() if split is not None),
            "classes": len(self._dataset.classes) or None,
            "dataset_bytes": self._dataset.total_bytes,
            "splits": {
                name: {"samples": len(split), "bytes": split.total_bytes}
                for name, split in splits.items()
                if split is not None
            },
            **self.data_totals(stages),
            **_store_answers(getattr(self._dataset.train, "reader", None)),
            "quarantined": len(self._quarantined),
        }


def _import_seconds(recorder: Recorder) -> float:
    """Of the startup: interpreter and imports; 0 for a library call, whose time begins later."""
    return max(0.0, _IMPORTED_UNIX - (time.time() - recorder.wall_seconds()))


def _store_answers(reader: Reader | None) -> dict[str, Any]:
    """How the store answered this process in this attempt; empty where the kernel reads the files."""
    counted = None if reader is None else reader.counters()
    if counted is None or not counted.requests:
        return {}
    return {
        "store_retries": counted.retries,
        "store_throttles": counted.throttles,
        "store_request_seconds_p05": counted.seconds_at(0.05),
        "store_request_seconds_p50": counted.seconds_at(0.5),
        "store_request_seconds_p99": counted.seconds_at(0.99),
    }
