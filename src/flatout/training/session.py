"""Train a recipe into a run directory; the same call again goes on where it stopped."""

import errno
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.config.loading import dump_config, load_config
from flatout.config.schema import Config, StopConfig
from flatout.cost import hourly_rate_usd, load_catalogue, spend_rates
from flatout.data.batch import AnyDataset, BatchSource, LoadStats
from flatout.data.loading.loader import Loader
from flatout.decisions import Choice
from flatout.decisions import compute as decisions
from flatout.decisions.compute import choose_threads, precision_is_open
from flatout.diagnosis.live import LiveHint
from flatout.engine import checkpoint
from flatout.engine.cuda_defaults import prepare_cuda, say_arithmetic, with_precision
from flatout.engine.device_clock import clock_for
from flatout.engine.devices import Device, choose_device, keep_freed_memory
from flatout.engine.learner import Learner, build_learner, load_weights, state_digest
from flatout.engine.loop import Job, Progress, StepRecord, UsedBatch, finite_tensors, nothing_left, train
from flatout.engine.optimizers import describe_optimizer
from flatout.engine.parallel import SingleProcess
from flatout.engine.parallel.joining import chosen_interface, devices_per_node, joined, needs_launch, own_place, spread
from flatout.engine.parallel.ranks import Ranks
from flatout.engine.schedules import describe, scaled_rate, warmup_steps
from flatout.errors import (
    ConfigError,
    DataChanged,
    EndedBySomeRank,
    FlatoutError,
    Interrupted,
    NoSpace,
    NotFinite,
    RunDirectoryError,
    RunFailed,
    StorageError,
    WorkerFailed,
)
from flatout.machine.available_memory import explain_memory, require_memory, tightest_limit
from flatout.machine.budgets import usable_cores
from flatout.machine.parents import last_words
from flatout.runs import Run, RunDirectory, read_run
from flatout.runs.directory import mark_ended, mark_failed, read_json, write_json, write_text
from flatout.runs.rebuilding import KILLED
from flatout.tasks.protocol import Task
from flatout.tasks.setup import AnyPlan, TaskSetup, open_source, open_task, workers_for_task
from flatout.timeline import Recorder
from flatout.timeline.startup import StartupClock
from flatout.training.data_identity import RunIdentity
from flatout.training.decided import NO_MONITOR, ONE_PROCESS, DecisionRecords, resolve
from flatout.training.display import Display, step_figures
from flatout.training.environment import describe_environment
from flatout.training.launching import launch_ranks
from flatout.training.link_preflight import look_at_link, refuse_slow_link
from flatout.training.monitoring import OwnGpu, check_interface
from flatout.training.rank_state import restore_own, save_own
from flatout.training.recording import NoRecords, RunRecords
from flatout.training.resuming import Resumed, check_compatible, find_resume_point, precision_so_far, shared
from flatout.training.sharing import TrainingData, open_training_data
from flatout.training.stopping import Signals, is_interruption, stop_reason
from flatout.training.trackers import Attempt, Trackers

MAX_FAILED_SAVES = 3
_RESUMES = "the same command resumes"


@dataclass(frozen=True)
class Setup:
    """What was checked before anything is written."""

    config: Config
    device: Device
    opened: TaskSetup
    total_steps: int

    @property
    def dataset(self) -> AnyDataset:
        return self.opened.dataset

    @property
    def task(self) -> Task:
        return self.opened.task

    @property
    def recipe(self) -> AnyPlan:
        return self.opened.recipe


def train_run(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    fresh: bool = False,
    warm_start: str | Path | None = None,
    accept_changed_data: bool = False,
    quiet: bool = True,
    whole_process: bool = False,
) -> Run:
    """Train and return the run. Raises a FlatoutError with the cause if it does not complete.

    `whole_process` counts the time of the process from its start, as the command line does.
    """
    started = None if whole_process else time.perf_counter()
    startup = StartupClock()
    config = load_config(source, overrides).config
    directory = RunDirectory(Path(run) if run is not None else Path("runs") / folder_name(config.name))
    place = own_place(config)
    fresh = fresh and (place is None or place.attempt == 0)  # ranks that are started again go on
    if needs_launch(config, place):
        options = {"run": str(directory.root.absolute()), "fresh": fresh, "accept_changed_data": accept_changed_data,
                   "warm_start": None if warm_start is None else str(warm_start), "quiet": quiet}  # fmt: skip
        launch_ranks(config, devices_per_node(config), directory, options)
        return read_finished(directory)
    with joined(config, place) as ranks, ExitStack() as stack:
        signals = stack.enter_context(Signals())
        precision: Choice[str] | None = None
        if precision_is_open(config):  # of all ranks, whatever cards they have; refused where one has it not
            precision = ranks.together(lambda: _settle_precision(config, directory, fresh or ranks.rank != 0))
            config = with_precision(config, ranks.from_main(precision.value))

        def prepare() -> tuple[Setup, Learner]:
            if ranks.rank == 0:
                directory.lock()  # first: a second process is refused before it lists a dataset or builds a model
                stack.callback(directory.unlock)
                stack.enter_context(last_words(lambda cause: mark_failed(directory, f"{cause}; {_RESUMES}")))
                if read_json(directory.summary).get("imported") and not fresh:
                    raise RunDirectoryError(
                        f"{directory.root} holds an imported log; choose another --run DIR, or --fresh to move it aside"
                    )
            with signals.at_once():
                setup = prepare_setup(config, ranks, None if fresh else directory.root, startup)
                begins = fresh or not checkpoint.list_saved(directory.checkpoints)
                with startup.part("model"), _memory_explained(config):
                    learner = _new_learner(setup, warm_start if begins else None)
                    spread(learner, config, ranks.world_size)
            if fresh and ranks.rank == 0:
                _set_aside(directory)
            return setup, learner

        try:
            setup, learner = ranks.together(prepare)
        except Interrupted:
            with suppress(FlatoutError):  # what an attempt that was killed left is not running any more
                mark_failed(directory, KILLED)
            raise
        display = stack.enter_context(Display(quiet or ranks.rank != 0))
        if ranks.rank == 0:
            signals.last_words = lambda cause: mark_ended(directory, "stopped", cause)
        session = _Session(setup, learner, directory, display, signals, ranks, startup, precision)
        stack.callback(session.close)
        session.run(warm_start, accept_changed_data, started)
    return read_finished(directory) if ranks.rank == 0 else Run.elsewhere(directory.root)


def read_finished(directory: RunDirectory) -> Run:
    """A run that ended well a moment ago."""
    if not directory.exists:
        raise RunFailed(f"the run ended well, but {directory.root} was deleted or moved since, weights and all")
    return read_run(directory.root)


def _set_aside(directory: RunDirectory) -> None:
    """Only now, when the new run is known to be possible."""
    directory.unlock()  # removes what the lock alone had made
    if directory.root.exists():
        directory.set_aside()
    directory.lock()


def prepare_setup(
    config: Config,
    ranks: SingleProcess | Ranks | None = None,
    run_folder: Path | None = None,
    startup: StartupClock | None = None,
) -> Setup:
    """Everything that can be wrong with the input is found here, before a file is touched."""
    startup = startup or StartupClock()
    with startup.part("device"):
        device = choose_device(config.device)
    config = with_precision(config, decisions.choose_precision(config, device.facts).value)
    check_interface(config)
    hourly_rate_usd(config.cost, load_catalogue(config.cost.prices))  # an unknown instance is found here
    rank, world_size = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
    with startup.part("listing"):
        opened = open_task(config, run_folder, rank, world_size)
    total = config.train.epochs * opened.recipe.batches_per_epoch
    total = total if config.train.max_steps is None else min(total, config.train.max_steps)
    return Setup(config, device, opened, total)


def _settle_precision(config: Config, directory: RunDirectory, begins: bool) -> Choice[str]:
    so_far = None if begins else precision_so_far(directory)
    return decisions.choose_precision(config, choose_device(config.device).facts, so_far)


def folder_name(name: str) -> str:
    if not name or "/" in name or name.startswith(".") or "\0" in name:
        raise ConfigError(f"name is {name!r}; a run's name is one folder name, without / and not starting with a dot")
    return name


def _schedule(setup: Setup, world_size: int) -> str:
    train, peak = setup.config.train, scaled_rate(setup.config.train.lr, setup.config.parallel.scale_lr, world_size)
    warmup = warmup_steps(train, setup.opened.recipe.batches_per_epoch)
    return describe(train.schedule, setup.total_steps, peak, warmup, train.milestones, train.gamma)


class _Session:
    """One attempt at a run: owns what must be closed, whatever happens."""

    def __init__(
        self,
        setup: Setup,
        learner: Learner,
        directory: RunDirectory,
        display: Display,
        signals: Signals,
        ranks: SingleProcess | Ranks,
        startup: StartupClock,
        precision: Choice[str] | None = None,  # as it was chosen, where the recipe leaves it open
    ) -> None:
        self._setup = setup
        self._precision = precision or decisions.choose_precision(setup.config, setup.device.facts)
        self._decided = DecisionRecords(directory)
        self._learner = learner
        self._directory = directory
        self._display = display
        self._signals = signals
        self._ranks = ranks
        self._records: RunRecords | NoRecords = NoRecords()
        if ranks.rank == 0:
            schedule = _schedule(setup, ranks.world_size)
            self._records = RunRecords(
                directory, setup.config, setup.dataset, setup.device, schedule, ranks.world_size, startup
            )
        attempt = ranks.from_main(self._records.attempt)
        self._recorder = Recorder(directory.spans / f"rank{ranks.rank}.jsonl", attempt)
        self._recorder.device_clock = clock_for(setup.device)
        self._data: TrainingData | None = None
        self._loader: BatchSource | None = None
        self._val_loader: BatchSource | None = None
        self._trackers = Trackers(setup.config.trackers if ranks.rank == 0 else [], self._say)
        self._others_stages = LoadStats()
        self._own_gpu = OwnGpu(setup.config, setup.device, ranks.rank) if ranks.rank != 0 else None
        self._failed_saves = 0
        self._stage_full_said = False
        self._rates = spend_rates(setup.config.cost, load_catalogue(setup.config.cost.prices))
        self._hint = LiveHint()
        self._identity = RunIdentity(directory.root, setup.dataset)
        self._lost_home: str | None = None  # why this run ends as soon as its weights are saved

    def run(self, warm_start: str | Path | None, accept_changed_data: bool, started: float | None) -> None:
        setup, config = self._setup, self._setup.config
        found, accepted = self._ranks.together(lambda: self._resume_point(accept_changed_data))
        resumed = shared(found, self._ranks)
        if self._ranks.from_main(self._records.completed) and nothing_left(resumed.progress, config):
            self._say(f"{self._directory.root} is complete: {resumed.progress.step} of {setup.total_steps} steps; "
                      "raise train.epochs to go on, or use --fresh to start anew")  # fmt: skip
            return
        restored = self._ranks.together(lambda: self._prepare_to_train(resumed, warm_start))
        self._recorder.open(started)  # the first file: whatever a user can get wrong was refused above
        for note in (*setup.dataset.notes, *setup.opened.notes, *resumed.notes, *accepted, *restored):
            self._say(note)
        if self._own_gpu is not None:
            self._own_gpu.start(self._recorder.wall_seconds, self._say)
        if isinstance(self._records, RunRecords):
            self._records.optimizer = describe_optimizer(self._learner.optimizer)
            self._records.system.rank_interface = getattr(self._ranks, "interface", None)
            self._records.system.start(self._recorder.wall_seconds, self._say)
            self._write_facts()
            attempt = Attempt(self._directory.root, config, self._records.attempt, resumed.progress.step + 1)
            self._trackers.start(attempt)
        self._train(self._learner, resumed.progress)

    def _write_facts(self) -> None:
        """What a run directory holds from the beginning."""
        write_text(self._directory.config, dump_config(self._setup.config))
        if self._setup.dataset.classes:
            write_json(self._directory.classes, list(self._setup.dataset.classes))
        for name, text in self._setup.opened.files.items():
            write_text(self._directory.root / name, text)
        write_json(self._directory.environment, describe_environment(self._setup.device, self._setup.config))
        self._decided.write()

    def _keep_home(self, step: int) -> bool:
        """Before anything is written by its name: is the run's directory still the one it was? Where it is not, what
        this process knows is written anew, and True returned: a checkpoint has to follow."""
        fate, before = self._directory.fate(), self._directory.root
        if fate == "here" or not isinstance(self._records, RunRecords):
            return False
        self._directory.find_again()
        self._records.follow()
        self._identity.follow(self._directory.root)
        self._recorder.follow(self._directory.spans / "rank0.jsonl")
        self._write_facts()
        now = self._directory.root
        if fate == "deleted":
            self._say(f"WARNING: {before} was deleted while training; found at step {step} and written anew, with all "
                      "records that were open, but without its older checkpoints")  # fmt: skip
        else:
            what = f"moved to {now}" if fate == "moved" else "replaced by another one, which is left alone"
            self._lost_home = (
                f"the run directory {before} was {what} while training; weights and records up to step {step} are in "
                f"{now}: --run {now} resumes"
            )
        return True

    def _resume_point(self, accept_changed_data: bool) -> tuple[Resumed | None, list[str]]:
        """Rank 0's disk decides."""
        if accept_changed_data:
            self._identity.accept_changes()
        if self._ranks.rank != 0:
            return None, []
        config, dataset = self._setup.config, self._setup.dataset
        found = find_resume_point(self._directory, config)
        differences = None if found.tensors is None else self._identity.differences()
        batch = self._setup.opened.global_batch
        accepted = check_compatible(found, config, dataset, accept_changed_data, batch, differences)
        if isinstance(self._records, RunRecords):
            self._records.data_changes += accepted
        return found, [*accepted, *self._identity.notes(found.tensors is not None, differences)]

    def _prepare_to_train(self, resumed: Resumed, warm_start: str | Path | None) -> list[str]:
        with _memory_explained(self._setup.config):
            notes = _restore(self._learner, resumed, warm_start)
        if self._ranks.rank == 0:
            _require_space(self._directory, self._learner)
        if self._setup.device.kind == "cpu":
            require_memory(2 * _weight_bytes(self._learner), self._setup.config.model.name, tightest_limit())
        return notes

    def close(self) -> None:
        for loader in (self._loader, self._val_loader):
            if loader is not None:
                loader.close()
        if self._own_gpu is not None:
            self._own_gpu.stop()
        with suppress(OSError):  # on a full disk the last spans are lost, and the cause of the end was said already
            self._recorder.close()
        self._records.close()

    def _train(self, learner: Learner, progress: Progress) -> None:
        try:
            job = self._ranks.together(lambda: self._job(learner, progress))
        except FlatoutError as error:  # a loader that cannot start, for want of room in /dev/shm or of an answer
            self._records.summarise("failed", str(error), self._recorder, self._stages(), progress.samples_seen)
            raise
        self._summarise("running", None, job)
        try:
            if isinstance(self._ranks, Ranks):
                self._begin(self._ranks, job)
            self._follow(job)
        except BaseException as error:
            if isinstance(error, NotFinite):
                self._keep_bad_batch(job)
            elif isinstance(error, StorageError | WorkerFailed | DataChanged) and isinstance(
                self._ranks, SingleProcess
            ):
                with suppress(NotFinite):  # the weights are good: nothing of the epoch so far is lost
                    self._save(learner, job.progress)
            cause = error if isinstance(error, FlatoutError) else self._explained(error, job)
            self._fail(job, f"{type(error).__name__}: {error}" if cause is None else str(cause))
            if cause is not None and self._ranks.rank != 0:
                raise EndedBySomeRank(str(cause), cause.exit_code, quiet=not self._main_is_gone()) from None
            if cause is None or cause is error:
                raise
            raise cause from None
        with self._recorder.span("other"):
            self._conclude(learner, job)
        if job.stopped is not None and is_interruption(job.stopped):
            if self._ranks.rank != 0:
                raise EndedBySomeRank(job.stopped, Interrupted.exit_code, quiet=True)
            raise Interrupted(f"stopped by {job.stopped}")

    def _conclude(self, learner: Learner, job: Job) -> None:
        """The last summary. Training is over and saved: what goes wrong here says so."""
        tensors = finite_tensors(learner, job.progress.step, keep=self._ranks.rank == 0)
        try:
            if self._keep_home(job.progress.step):
                self._write_checkpoint(tensors, job.progress)
            self._summarise("completed" if job.stopped is None else "stopped", job.stopped, job, state_digest(tensors))
        except (OSError, NoSpace) as error:
            cause = (
                f"training ended at step {job.progress.step} and its weights are safe in "
                f"{self._directory.checkpoints}, but the last records could not be written: {error}; free some space, "
                "then the same command writes them"
            )
            with suppress(OSError):
                mark_failed(self._directory, cause)
            raise RunFailed(cause) from None
        if self._lost_home is not None:
            self._say(f"WARNING: {self._lost_home}")

    def _explained(self, error: BaseException, job: Job) -> FlatoutError | None:
        """What a user can do about an error of torch or the system; None for a bug."""
        if isinstance(self._ranks, Ranks) and (blamed := self._ranks.explain(error)) is not None:
            return RunFailed(f"training ended after step {job.progress.step}: {blamed}; the same command resumes")
        key = self._setup.opened.batch_key
        size = getattr(self._setup.config.data, key)
        if isinstance(error, torch.OutOfMemoryError):
            return RunFailed(
                f"the device ran out of memory with data.{key} = {size}: {str(error).splitlines()[0]}; "
                f"try data.{key}={max(1, size // 2)}, train.checkpointing=true, or train.accumulate=2"
            )
        if (short := explain_memory(error, f"after step {job.progress.step}, with data.{key} = {size}")) is not None:
            return short
        if isinstance(error, FileNotFoundError) and self._directory.fate() != "here":
            return RunFailed(self._homeless(job))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return RunFailed(
                f"no room for the records of {self._directory.root} after step {job.progress.step}: {error.strerror}; "
                "free some space, then the same command resumes from the newest checkpoint"
            )
        return None

    def _homeless(self, job: Job) -> str:
        """A record found no directory between two checkpoints."""
        before, step = self._directory.root, job.progress.step
        self._keep_home(step)
        saved = isinstance(self._ranks, SingleProcess)
        if saved:
            self._write_checkpoint(finite_tensors(self._learner, step, keep=True), job.progress)
        return self._lost_home or (
            f"the run directory {before} was deleted while training; what is known of the run was written anew after "
            f"step {step}, {'with' if saved else 'without'} its weights; {_RESUMES if saved else 'start it again'}"
        )

    def _job(self, learner: Learner, progress: Progress) -> Job:
        setup, config = self._setup, self._setup.config
        workers = workers_for_task(config.data, setup.device.kind, setup.recipe)
        epochs = math.ceil((setup.total_steps - progress.step) / setup.recipe.batches_per_epoch)
        self._data = open_training_data(
            setup.recipe, config, workers, setup.device.kind, self._recorder, self._directory.root, epochs
        )
        self._loader = self._data.loader
        self._write_decisions(self._loader, progress.step)
        if (val_recipe := setup.opened.val_recipe) is not None:
            self._val_loader = open_source(
                val_recipe, config.data, min(workers.value, 1), False, setup.device.kind,
                memory_taken=self._loader.memory_bytes, epochs=math.ceil(epochs / config.validate_.every_epochs),
            )  # fmt: skip
        if config.parallel.mode == "dp":
            self._say("WARNING: parallel.mode=dp copies the model to every GPU at every step; ddp does not")
        self._say(
            f"training {config.model.name} on {setup.device.name}: {setup.opened.what}, "
            f"{setup.total_steps:,} steps, {workers.value} worker(s)"
        )
        for line in say_arithmetic(config, setup.device):
            self._say(line)
        for note in self._loader.notes:
            self._say(note)
        limits = config.stop if self._ranks.rank == 0 else StopConfig()  # rank 0 keeps the time and the money
        return Job(
            config, setup.task, learner, self._loader, self._val_loader, self._recorder, progress,
            save=lambda progress: self._save(learner, progress),
            stop_reason=lambda: stop_reason(limits, self._signals, self._elapsed_seconds, self._spent_usd),
            total_steps=setup.total_steps, ranks=self._ranks,
            peak_rate=scaled_rate(config.train.lr, config.parallel.scale_lr, self._ranks.world_size),
        )  # fmt: skip

    def _write_decisions(self, loader: BatchSource, step: int) -> None:
        if not isinstance(self._records, RunRecords) or loader.decided is None:
            return
        config, ranks, system = self._setup.config, self._ranks, self._records.system
        between = chosen_interface(config, ranks.group.place) if isinstance(ranks, Ranks) else ONE_PROCESS
        monitored = NO_MONITOR if config.monitor.interval_seconds is None else system.interface()
        resolved = resolve(config, self._learner, loader.decided, ranks.world_size, self._precision, between, monitored)
        self._decided.begin(resolved, self._records.attempt, step)

    def _begin(self, ranks: Ranks, job: Job) -> None:
        """From here on the ranks watch each other."""
        assert self._loader is not None
        ranks.foreign_failures = self._loader.quarantine.update
        ranks.begin(job.learner, self._recorder, end=lambda cause: self._lost(cause, job))
        warning = ranks.group.place.warning
        notes = [] if warning is None else [warning]
        notes += restore_own(ranks, job.learner, self._directory.checkpoints, job.progress.step)
        if job.config.parallel.preflight:
            link, said = look_at_link(ranks, job)
            notes += said
            if isinstance(self._records, RunRecords):
                write_json(self._directory.root / "link.json", link)
                self._records.link = link
            refuse_slow_link(link, job.config)
        for note in notes:
            self._say(note)

    def _lost(self, cause: str, job: Job) -> None:
        """The last thing this process does: another rank is silent, and the main thread waits for it in vain."""
        cause = f"training ended after step {job.progress.step}: {cause}; the same command resumes"
        self._say(cause)
        self._fail(job, cause)

    def _follow(self, job: Job) -> None:
        """Run the loop; write down and show what it yields."""
        self._display.begin(self._title(job), job.progress.step, job.total_steps)
        self._recorder.end_startup()
        for record in train(job):
            self._records_failures()
            self._decided.follow(job.source, job.progress.step)
            if isinstance(record, StepRecord):
                self._records.step(record)
                self._trackers.step(record)
                self._show(job, record)
            else:
                self._hear_of_others()
                self._keep_home(job.progress.step)
                self._records.epoch(record)
                self._trackers.epoch(record)
                self._say_once_if_stage_is_full()
                self._summarise("running", None, job)
                self._say(_epoch_line(record.epoch, job.config.train.epochs, record.train_loss, record.metrics))
        if self._failed_saves:
            raise RunFailed(
                f"the checkpoint of step {job.progress.step}, where training ended, could not be written; "
                "free some space, then the same command resumes from the one before"
            )

    def _hear_of_others(self) -> None:
        """What the other ranks' loaders did and found, at the end of an epoch."""
        if not isinstance(self._ranks, Ranks):
            return
        if self._val_loader is not None:
            self._val_loader.quarantine.update(self._ranks.share_failures(self._val_loader.quarantine))
        gpu = None if self._own_gpu is None else self._own_gpu.take()
        learnt = self._identity.learnt()
        said = self._ranks.group.gather({"stages": vars(self._own_stages()), "gpu": gpu, "learnt": learnt})
        self._others_stages = LoadStats()
        for rank, each in enumerate(said[1:], 1):
            self._others_stages.add(LoadStats(**each["stages"]))
            self._identity.hear(each["learnt"])
            if isinstance(self._records, RunRecords) and each["gpu"] is not None:
                self._records.system.add_rank(rank, each["gpu"])

    def _say_once_if_stage_is_full(self) -> None:
        log = self._loader.log if isinstance(self._loader, Loader) else None
        if log is not None and log.full is not None and not self._stage_full_said:
            self._stage_full_said = True
            self._say(f"stage: full ({log.full}); what is not there yet is read from the store every epoch")

    def _records_failures(self) -> None:
        for split, loader in (("train", self._loader), ("val", self._val_loader)):
            if loader is not None and loader.quarantine:
                self._records.quarantine(split, loader.quarantine)

    def _show(self, job: Job, record: StepRecord) -> None:
        figures = step_figures(
            record.loss, record.samples / record.step_seconds, record.data_wait_seconds / record.step_seconds,
            self._spent_usd(),
        )  # fmt: skip
        self._hint.add(record.step_seconds, record.data_wait_seconds)
        hint = self._hint.text()
        self._display.advance(self._title(job), record.step, job.total_steps, f"{figures}  {hint}" if hint else figures)

    def _title(self, job: Job) -> str:
        return f"epoch {min(job.progress.epoch + 1, job.config.train.epochs)}/{job.config.train.epochs}"

    def _elapsed_seconds(self) -> float:
        return self._records.earlier_seconds + self._recorder.wall_seconds()

    def _spent_usd(self) -> float | None:
        """By the prices of the summary's ledger: all attempts, and requests to the store."""
        if self._rates is None or not isinstance(self._records, RunRecords):
            return None
        data = self._records.data_totals(self._stages())
        return self._rates.spent_usd(self._elapsed_seconds(), data["store_requests"], data["store_bytes"])

    def _stages(self) -> LoadStats:
        """Of all ranks, as far as this one knows."""
        stages = self._own_stages()
        stages.add(self._others_stages)
        return stages

    def _own_stages(self) -> LoadStats:
        stages = LoadStats()
        for loader in (self._loader, self._val_loader):
            if loader is not None:
                stages.add(loader.stages)
        own = self._setup.dataset.store_counters()  # worker processes hand theirs over with each batch
        stages.store_requests += own.requests
        stages.store_bytes += own.bytes
        return stages

    def _save(self, learner: Learner, progress: Progress) -> None:
        tensors = finite_tensors(learner, progress.step, keep=self._ranks.rank == 0)
        if isinstance(self._ranks, Ranks):
            save_own(self._ranks, learner, self._directory.checkpoints, progress.step)
        if self._ranks.rank != 0:
            return
        self._keep_home(progress.step)
        self._write_checkpoint(tensors, progress)
        if self._lost_home is not None:
            raise RunFailed(self._lost_home)

    def _write_checkpoint(self, tensors: Mapping[str, torch.Tensor], progress: Progress) -> None:
        config, folder = self._setup.config, self._directory.checkpoints
        metric = progress.metrics.get(config.checkpoint.metric) if progress.batch_index == 0 else None
        state = {
            "progress": vars(progress),
            "metric": metric,
            "precision": self._learner.precision.scalars(),
            "data_fingerprint": self._setup.dataset.fingerprint,
            "samples": {"train": len(self._setup.dataset.train)},
            "classes": list(self._setup.dataset.classes),  # in the order of their labels: what the outputs mean
            "attempt": self._records.attempt,
            "global_batch": self._setup.opened.global_batch,
        }
        self._identity.save()
        try:
            checkpoint.save(folder, progress.step, tensors, state)
            checkpoint.prune(folder, config.checkpoint.keep_top, self._setup.task.better[config.checkpoint.metric])
            self._failed_saves = 0
        except NoSpace as error:
            self._failed_saves += 1
            self._say(f"WARNING: {error}")
            if self._failed_saves >= MAX_FAILED_SAVES:
                raise RunFailed(f"{MAX_FAILED_SAVES} checkpoints in a row could not be written: {error}") from None

    def _fail(self, job: Job, cause: str) -> None:
        if isinstance(self._ranks, Ranks):
            self._ranks.tell_failure(cause)
        if self._main_is_gone():
            mark_failed(self._directory, cause)
        try:
            self._keep_home(job.progress.step)
            self._records_failures()
            self._summarise("failed", cause, job)
        except (OSError, MemoryError):  # no room: at least how it ended is said
            with suppress(OSError):
                if self._ranks.rank == 0:
                    mark_failed(self._directory, cause)

    def _main_is_gone(self) -> bool:
        return isinstance(self._ranks, Ranks) and self._ranks.rank == 1 and self._ranks.main_is_gone

    def _keep_bad_batch(self, job: Job) -> None:
        """Which samples may have made the loss or a gradient infinite: all from the last whose loss was good on."""
        if job.unread and self._ranks.rank == 0:
            used = [self._named(each) for each in job.unread]
            write_json(self._directory.root / "bad_batch.json", {**used[-1], "since_last_read": used})

    def _named(self, used: UsedBatch) -> dict[str, Any]:
        ids = used.sample_ids.tolist()
        return {**vars(used), "sample_ids": ids, "names": [self._setup.dataset.train.name(i) for i in ids]}

    def _summarise(self, status: str, cause: str | None, job: Job, digest: str | None = None) -> None:
        if not isinstance(self._records, RunRecords):
            return
        if status != "running":
            self._records.system.stop()
        higher = job.task.better[job.config.checkpoint.metric] == "higher"
        shared = self._data.summary() if self._data is not None else None
        summary = self._records.summarise(
            status, cause, self._recorder, self._stages(), job.progress.samples_seen, digest, higher, shared
        )
        if status != "running":
            self._trackers.finish(summary)

    def _say(self, text: str) -> None:
        self._display.say(text)
        if self._ranks.rank != 0:
            return
        with suppress(OSError), self._directory.log.open("a", encoding="utf-8", errors="surrogateescape") as log:
            log.write(text + "\n")


@contextmanager
def _memory_explained(config: Config) -> Iterator[None]:
    """Around what needs no batch: a smaller one would not help."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunFailed(
            f"the device ran out of memory before the first step, with {config.model.name} (model.width = "
            f"{config.model.width:g}) and its optimizer alone: {str(error).splitlines()[0]}; use a smaller model, "
            "parallel.mode=fsdp on several devices, or end what else uses this one"
        ) from None
    except (MemoryError, RuntimeError, OSError) as error:
        when = f"before the first step, with {config.model.name} (model.width = {config.model.width:g}) alone"
        if (short := explain_memory(error, when)) is None:
            raise
        raise short from None


def prepare_compute(config: Config, device: Device) -> None:
    keep_freed_memory()
    torch.set_num_threads(compute_threads(config, device.kind))
    if device.kind == "cuda":
        prepare_cuda(config.train.tf32)


def compute_threads(config: Config, device_kind: str) -> int:
    """Beside a GPU one: what torch does on the host is small there, and every thread that does some of it would start
    a team of its own."""
    return choose_threads(config.threads, device_kind, usable_cores()).value


def _new_learner(setup: Setup, warm_start: str | Path | None) -> Learner:
    """Built before a file is touched: an unknown model, a precision or weights that do not fit are found here."""
    if warm_start is not None and setup.device.kind == "emulated":
        raise ConfigError("--warm-start takes trained weights but device is emulated, which has none; leave one out")
    prepare_compute(setup.config, setup.device)
    learner = build_learner(setup.task, setup.config, setup.device)
    if warm_start is not None:
        _start_warm(learner, warm_start)
    return learner


def _start_warm(learner: Learner, weights: str | Path) -> None:
    load_weights(learner.model, checkpoint.load_tensors(Path(weights)))
    if learner.ema is not None:
        learner.ema = learner.ema.start(learner.model, learner.ema.decay)  # not an average with the random weights


def _restore(learner: Learner, resumed: Resumed, warm_start: str | Path | None) -> list[str]:
    if resumed.tensors is not None:
        learner.precision.load_scalars(resumed.precision)
        return learner.load(resumed.tensors)
    if warm_start is not None:
        _start_warm(learner, warm_start)
        return [f"weights from {warm_start}; optimizer and schedule start anew"]
    return []


def _require_space(directory: RunDirectory, learner: Learner) -> None:
    """Room for two checkpoints (the optimizer may still grow to twice the weights), before the first step."""
    checkpoint.require_space(directory.root, 3 * _weight_bytes(learner))


def _weight_bytes(learner: Learner) -> int:
    return sum(value.nbytes for value in learner.model.state_dict().values())


def _epoch_line(epoch: int, epochs: int, train_loss: float | None, metrics: Mapping[str, float]) -> str:
    parts = [f"epoch {epoch + 1}/{epochs}"]
    parts += [] if train_loss is None else [f"train loss {train_loss:.3f}"]
    names: dict[str, Callable[[float], str]] = {
        "val_loss": lambda value: f"val loss {value:.3f}",
        "top1": lambda value: f"top-1 {100 * value:.1f} %",
        "top5": lambda value: f"top-5 {100 * value:.1f} %",
        "bleu": lambda value: f"BLEU {value:.1f}",
    }
    return "  ".join([*parts, *(names[name](metrics[name]) for name in names if name in metrics)])
