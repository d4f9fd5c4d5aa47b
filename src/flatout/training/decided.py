"""What was decided for a run, put together and kept in its resolved.json."""

import time
from contextlib import suppress
from typing import Any

from flatout.config.schema import Config
from flatout.data.batch import BatchSource
from flatout.decisions import Choice, Resolved
from flatout.decisions.batches import choose_batch
from flatout.decisions.compute import choose_device_kind, choose_kernels, choose_log_interval, choose_threads
from flatout.decisions.document import with_attempt, with_changes
from flatout.decisions.loading import DataDecisions
from flatout.decisions.resolved import MonitorDecisions, ParallelDecisions, TrainDecisions
from flatout.decisions.speedups import choose_methods, choose_speedups
from flatout.engine.devices import present_devices
from flatout.engine.learner import Learner
from flatout.engine.optimizers import arguments_for
from flatout.errors import RunDirectoryError
from flatout.machine.budgets import usable_cores
from flatout.runs.directory import RunDirectory, read_json, write_json
from flatout.sampling import rank_slice

ONE_PROCESS: Choice[str | None] = Choice(None, "one process has nobody to talk to")
NO_MONITOR: Choice[str | None] = Choice(None, "monitor.interval_seconds is null: nothing is read")


def resolve(
    config: Config,
    learner: Learner,
    data: DataDecisions,
    world_size: int,
    precision: Choice[str],
    rank_interface: Choice[str | None],
    monitored: Choice[str | None],
) -> Resolved:
    """Every decision of an attempt: those that others made on the way, and those that follow from the learner."""
    kind = learner.device.kind
    return Resolved(
        choose_device_kind(config.device, present_devices()),
        choose_threads(config.threads, kind, usable_cores()),
        choose_batch(config, world_size, rank_slice),
        data,
        TrainDecisions(
            precision,
            choose_log_interval(config.train.log_every, learner.device.waits),
            arguments_for(learner.model, config.train),
            choose_kernels(config, learner.device.facts),
        ),
        ParallelDecisions(rank_interface),
        MonitorDecisions(monitored),
        choose_speedups(config),
        choose_methods(config),
    )


class DecisionRecords:
    """resolved.json of one run, which this attempt appends to."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._document: dict[str, Any] = {}
        self._attempt = 0
        self._written = 0  # of the loader's changes

    def begin(self, resolved: Resolved, attempt: int, step: int) -> None:
        """`step` is the last one that was done before this attempt."""
        self._attempt, earlier = attempt, {}
        with suppress(RunDirectoryError):  # a damaged file holds nothing that could be kept, and ends no run
            earlier = read_json(self._directory.resolved)
        self._document = with_attempt(earlier, resolved, attempt, step, time.time())
        self.write()

    def follow(self, source: BatchSource, step: int) -> None:
        """Append what the source decided anew; asked for after every step, which costs one comparison."""
        if not self._attempt or len(source.changes) == self._written:
            return
        new = source.changes[self._written :]
        self._written += len(new)
        self._document = with_changes(self._document, new, self._attempt, step, time.time())
        with suppress(OSError):  # a full disk ends a run where something is lost that it needs
            self.write()

    def write(self) -> None:
        """Again where the run's directory is another one now; nothing before `begin`."""
        if self._document:
            write_json(self._directory.resolved, self._document)
