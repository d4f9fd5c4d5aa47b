"""One attempt at a run, from the resume point to the last summary."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flatout.config.schema import StopConfig
from flatout.config.tasks import metric_named
from flatout.decisions import Choice, Resolved
from flatout.decisions.compute import choose_precision
from flatout.decisions.loading import DataDecisions
from flatout.decisions.speedups import speedup_notes
from flatout.diagnosis.live import LiveHint
from flatout.engine.cuda_defaults import say_arithmetic
from flatout.engine.device_clock import clock_for
from flatout.engine.learner import Learner, state_digest
from flatout.engine.loop import Job, finite_tensors, nothing_left, train
from flatout.engine.optimizers import describe_optimizer
from flatout.engine.parallel import Parallel
from flatout.engine.parallel.joining import chosen_interface, own_place
from flatout.engine.progress import EpochRecord, Progress, StepRecord
from flatout.errors import EndedBySomeRank, FlatoutError, Interrupted, NoSpace, RunFailed
from flatout.machine.available_memory import require_memory, tightest_limit
from flatout.machine.processes import own_identity
from flatout.runs import RunDirectory
from flatout.runs.directory import mark_failed
from flatout.timeline import Recorder
from flatout.timeline.startup import StartupClock
from flatout.training.accounting import Accounting
from flatout.training.data_identity import RunIdentity
from flatout.training.decided import ONE_PROCESS, DecisionRecords, resolve
from flatout.training.display import Display, RunLog, step_figures
from flatout.training.failures import FailureHandling
from flatout.training.link_preflight import look_at_link
from flatout.training.own_sources import agreed_sources, changes
from flatout.training.records import open_records
from flatout.training.resuming import Resumed, broadcast_resume_point, check_compatible, find_resume_point
from flatout.training.saving import Saving, restore_own, weight_bytes
from flatout.training.setup import Setup, first_weights, memory_explained, restore
from flatout.training.sharing import RunBatches
from flatout.training.stopping import StopSignals, is_interruption, stop_reason
from flatout.training.trackers import TrackedAttempt, Trackers


@dataclass(eq=False, repr=False)
class Session:
    """Owns what must be closed, whatever happens. `run` is called once."""

    setup: Setup
    learner: Learner
    directory: RunDirectory
    display: Display
    signals: StopSignals
    ranks: Parallel
    startup: StartupClock
    precision: Choice[str] | None = None  # as it was chosen, where the recipe leaves it open

    def __post_init__(self) -> None:
        setup, learner, directory, ranks = self.setup, self.learner, self.directory, self.ranks
        self._precision = self.precision or choose_precision(setup.config, setup.device.facts)
        self._decided = DecisionRecords(directory)
        self._say = RunLog(self.display, directory, writes=ranks.rank == 0).say
        self._records = open_records(setup, directory, ranks, self.startup)
        attempt = ranks.group.from_main(self._records.attempt)
        self._recorder = Recorder(directory.spans / f"rank{ranks.rank}.jsonl", attempt)
        self._recorder.device_clock = clock_for(setup.device)
        self._batches = RunBatches(setup)
        self._trackers = Trackers(setup.config.trackers if ranks.rank == 0 else [], self._say)
        self._identity = RunIdentity(directory.root, setup.dataset)
        self._sources = agreed_sources(setup.config, ranks)
        self._saving = Saving(
            setup,
            learner,
            directory,
            ranks,
            self._records,
            self._recorder,
            self._identity,
            self._decided,
            self._say,
            self._sources,
        )
        self._accounting = Accounting(
            setup, ranks, self._records, self._recorder, self._batches, self._identity, self._trackers
        )
        self._hint = LiveHint()
        self._stage_full_said = False

    def run(self, warm_start: str | Path | None, accept_changed_data: bool, started: float | None) -> None:
        """Train to the end, or to a reason to stop. `started`, of time.perf_counter, is where the attempt's time
        begins; None for the start of the process."""
        ranks, config = self.ranks, self.setup.config
        found, accepted = ranks.together(lambda: self._resume_point(accept_changed_data))
        resumed = broadcast_resume_point(found, ranks)
        if ranks.group.from_main(self._records.completed) and nothing_left(resumed.progress, config):
            self._say(
                f"{self.directory.root} is complete: {resumed.progress.step} of {self.setup.total_steps} steps; "
                "raise train.epochs to go on, or use --fresh to start anew"
            )
            if ranks.rank == 0 and not self.directory.exists:
                self._saving.write_config()
                self._say(f"{self.directory.config} was gone and is written anew")
            return
        restored = ranks.together(lambda: self._restore(resumed, warm_start))
        self._recorder.open(started)  # the first file: whatever a user can get wrong was refused above
        restored += speedup_notes(config)
        for note in (*self.setup.dataset.notes, *self.setup.opened.notes, *resumed.notes, *accepted, *restored):
            self._say(note)
        self._begin_records(resumed.progress)
        job = self._open_job(resumed.progress)
        self._accounting.summarise("running", None, job)
        failures = FailureHandling(
            job, self.directory, ranks, self._saving, self._accounting, self.setup.dataset.train.name, self._say
        )
        try:
            self._begin_ranks(job, failures)
            self._follow(job)
        except BaseException as error:
            cause = failures.end(error)
            if cause is error:
                raise
            raise cause from None
        self._conclude(job)
        if job.stopped is not None and is_interruption(job.stopped):
            if ranks.rank != 0:
                raise EndedBySomeRank(job.stopped, Interrupted.exit_code, quiet=True)
            raise Interrupted(f"stopped by {job.stopped}")

    def close(self) -> None:
        self._batches.close()
        with suppress(OSError):  # on a full disk the last spans are lost, and the cause of the end was said already
            self._recorder.close()
        self._records.close()

    # Before the first step

    def _resume_point(self, accept_changed_data: bool) -> tuple[Resumed | None, list[str]]:
        """Where the run goes on, by rank 0's disk, and notes for the log."""
        if accept_changed_data:
            self._identity.accept_changes()
        if self.ranks.rank != 0:
            return None, []
        config, opened = self.setup.config, self.setup.opened
        found = find_resume_point(self.directory, config)
        differences = None if found.tensors is None else self._identity.differences()
        accepted = check_compatible(
            found, config, opened.dataset, accept_changed_data, opened.global_batch, differences
        )
        self._records.accept_data_changes(accepted)
        code = changes(found.sources, self._sources)
        return found, [*accepted, *self._identity.notes(found.tensors is not None, differences), *code]

    def _restore(self, resumed: Resumed, warm_start: str | Path | None) -> list[str]:
        with memory_explained(self.setup.config):
            notes = restore(self.setup, self.learner, resumed, first_weights(self.setup.config, warm_start))
        self._saving.require_space()
        if self.setup.device.kind == "cpu":
            require_memory(2 * weight_bytes(self.learner), self.setup.config.model.name, tightest_limit())
        return notes

    def _begin_records(self, progress: Progress) -> None:
        optimizer, clock = describe_optimizer(self.learner.optimizer), self._recorder.wall_seconds
        place, _ = own_identity()
        near = [pid for where, pid in self.ranks.group.gather(own_identity()) if where == place]
        self._records.begin(optimizer, self.ranks.interface, clock, self._say, near)
        if self.ranks.rank == 0:
            self._saving.write_facts()
            self._trackers.start(
                TrackedAttempt(self.directory.root, self.setup.config, self._records.attempt, progress.step + 1)
            )

    def _open_job(self, progress: Progress) -> Job:
        try:
            return self.ranks.together(lambda: self._job(progress))
        except FlatoutError as error:  # a loader that cannot start, for want of room in /dev/shm or of an answer
            self._accounting.summarise_failed_start(str(error), progress.samples_seen)
            raise

    def _job(self, progress: Progress) -> Job:
        setup, config, opened = self.setup, self.setup.config, self.setup.opened
        workers = opened.choose_workers(config.data, setup.device.kind, opened.plan)
        left = math.ceil((setup.total_steps - progress.step) / opened.plan.batches_per_epoch)
        epochs = max(1, min(left, config.epochs_to_train - progress.epoch))
        self._batches.open_train(workers, epochs, self._recorder, self.directory.root)
        source = self._batches.source
        if self.ranks.rank == 0 and source.decided is not None:
            self._decided.begin(self._resolve(source.decided), self._records.attempt, progress.step)
        self._batches.open_val(workers, epochs)
        if config.parallel.mode == "dp":
            self._say("WARNING: parallel.mode=dp copies the model to every GPU at every step; ddp does not")
        self._say(
            f"training {config.model.name} on {setup.device.name}: {opened.what}, "
            f"{setup.total_steps:,} steps, {workers.value} worker(s)"
        )
        for line in (*say_arithmetic(config, setup.device), *source.notes):
            self._say(line)
        limits = config.stop if self.ranks.rank == 0 else StopConfig()  # rank 0 keeps the time and the money
        accounting = self._accounting
        return Job(
            config,
            setup.task,
            self.learner,
            source,
            self._batches.val_source,
            self._recorder,
            progress,
            save=self._saving.save,
            stop_reason=lambda: stop_reason(limits, self.signals, accounting.elapsed_seconds, accounting.spent_usd),
            total_steps=setup.total_steps,
            ranks=self.ranks,
            peak_rate=setup.peak_rate(self.ranks.world_size),
        )

    def _resolve(self, data: DataDecisions) -> Resolved:
        config, place = self.setup.config, own_place(self.setup.config)
        between = ONE_PROCESS if self.ranks.world_size == 1 or place is None else chosen_interface(config, place)
        monitored = self._records.monitored_interface()
        return resolve(config, self.learner, data, self.ranks.world_size, self._precision, between, monitored)

    def _begin_ranks(self, job: Job, failures: FailureHandling) -> None:
        """From here on the ranks watch each other."""
        notes = self.ranks.begin(job.learner, self._recorder, failures.lost_rank, job.source.quarantine.update)
        notes += restore_own(self.ranks, job.learner, self.directory.checkpoints, job.progress.step)
        notes += look_at_link(self.ranks, job, self._records.keep_link)
        for note in notes:
            self._say(note)

    # Steps and epochs

    def _follow(self, job: Job) -> None:
        """Run the loop; write down and show what it yields."""
        self.display.begin(_title(job), job.progress.step, job.total_steps)
        self._recorder.end_startup()
        for record in train(job):
            self._accounting.record_quarantine()
            self._decided.follow(job.source, job.progress.step)
            if isinstance(record, StepRecord):
                self._records.step(record)
                self._trackers.step(record)
                self._show(job, record)
            else:
                self._end_epoch(job, record)
        if self._saving.failed_saves:
            raise RunFailed(
                f"the checkpoint of step {job.progress.step}, where training ended, could not be written; "
                "free some space, then the same command resumes from the one before"
            )

    def _end_epoch(self, job: Job, record: EpochRecord) -> None:
        self._accounting.collect_from_ranks()
        self._saving.keep_home(job.progress.step)
        self._records.epoch(record)
        self._trackers.epoch(record)
        full = job.source.stage_is_full
        if full is not None and not self._stage_full_said:
            self._stage_full_said = True
            self._say(f"stage: full ({full}); what is not there yet is read from the store every epoch")
        self._accounting.summarise("running", None, job)
        self._say(_epoch_line(record.epoch, job.config.train.epochs, record.train_loss, record.metrics))

    def _show(self, job: Job, record: StepRecord) -> None:
        figures = step_figures(
            record.loss,
            record.samples / record.step_seconds,
            record.data_wait_seconds / record.step_seconds,
            self._accounting.spent_usd(),
        )
        self._hint.add(record.step_seconds, record.data_wait_seconds)
        hint = self._hint.text()
        self.display.advance(_title(job), record.step, job.total_steps, f"{figures}  {hint}" if hint else figures)

    # The end

    def _conclude(self, job: Job) -> None:
        """The last summary. Training is over and saved: what goes wrong here says so."""
        try:
            with self._recorder.span("other"):  # inside: a full disk fails the span's own line, too
                self._write_last_records(job)
        except (OSError, NoSpace) as error:
            cause = (
                f"training ended at step {job.progress.step} and its weights are safe in "
                f"{self.directory.checkpoints}, but the last records could not be written: {error}; free some space, "
                "then the same command writes them"
            )
            with suppress(OSError):
                mark_failed(self.directory, cause)
            raise RunFailed(cause) from None
        if self._saving.lost_home is not None:
            self._say(f"WARNING: {self._saving.lost_home}")

    def _write_last_records(self, job: Job) -> None:
        tensors = finite_tensors(job.learner, job.progress.step, keep=self.ranks.rank == 0)
        status = "completed" if job.stopped is None else "stopped"
        if self._saving.keep_home(job.progress.step):
            self._saving.write(tensors, job.progress)
        self._accounting.summarise(status, job.stopped, job, state_digest(tensors))


def _title(job: Job) -> str:
    return f"epoch {min(job.progress.epoch + 1, job.config.train.epochs)}/{job.config.train.epochs}"


def _epoch_line(epoch: int, epochs: int, train_loss: float | None, metrics: Mapping[str, float]) -> str:
    parts = [f"epoch {epoch + 1}/{epochs}"]
    parts += [] if train_loss is None else [f"train loss {train_loss:.3f}"]
    named = sorted(map(metric_named, metrics), key=lambda each: each.higher_is_better)
    parts += [metric.in_log(metrics[metric.name]) for metric in named]
    return "  ".join(parts)  # losses first
