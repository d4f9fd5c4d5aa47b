"""Train a recipe into a run directory; the same call again goes on where it stopped."""

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.app.display import Display, step_figures
from flatout.app.environment import describe_environment
from flatout.app.monitoring import check_interface
from flatout.app.recording import RunRecords
from flatout.app.resuming import Resumed, check_compatible, find_resume_point
from flatout.app.stopping import Signals, stop_reason
from flatout.app.task_setup import AnyRecipe, Opened, open_source, open_task, workers_for_task
from flatout.app.trackers import Attempt, Trackers
from flatout.config.loading import dump_config, load_config
from flatout.config.schema import Config
from flatout.cost import hourly_rate_usd, load_catalogue, spend_rates
from flatout.data.batch import AnyDataset, BatchSource, StageSeconds
from flatout.data.budgets import usable_cores
from flatout.data.loader import Loader
from flatout.engine import checkpoint
from flatout.engine.device_clock import CudaClock
from flatout.engine.devices import Device, choose_device, keep_freed_memory
from flatout.engine.ema import Ema
from flatout.engine.learner import Learner, build_learner, load_weights, state_digest
from flatout.engine.loop import Job, Progress, StepRecord, nothing_left, train
from flatout.errors import (
    ConfigError,
    FlatoutError,
    Interrupted,
    NoSpace,
    NotFinite,
    RunDirectoryError,
    RunFailed,
    StorageError,
    WorkerFailed,
)
from flatout.runs import Run, RunDirectory, read_run
from flatout.runs.directory import read_json, write_json, write_text
from flatout.tasks.protocol import Task
from flatout.timeline import Recorder

MAX_FAILED_SAVES = 3


@dataclass(frozen=True)
class Setup:
    """What was checked before anything is written."""

    config: Config
    device: Device
    opened: Opened
    total_steps: int

    @property
    def dataset(self) -> AnyDataset:
        return self.opened.dataset

    @property
    def task(self) -> Task:
        return self.opened.task

    @property
    def recipe(self) -> AnyRecipe:
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
    config = load_config(source, overrides).config
    directory = RunDirectory(Path(run) if run is not None else Path("runs") / folder_name(config.name))
    with ExitStack() as stack:
        directory.lock()  # first: a second process is refused before it lists a dataset or builds a model
        stack.callback(directory.unlock)
        if read_json(directory.summary).get("imported") and not fresh:
            raise RunDirectoryError(
                f"{directory.root} holds an imported log; choose another --run DIR, or --fresh to move it aside"
            )
        setup = prepare_setup(config, None if fresh else directory.root)
        begins = fresh or not checkpoint.list_saved(directory.checkpoints)
        learner = _new_learner(setup, warm_start if begins else None)
        if fresh:
            _set_aside(directory)
        display = stack.enter_context(Display(quiet))
        signals = stack.enter_context(Signals())
        session = _Session(setup, learner, directory, display, signals)
        stack.callback(session.close)
        session.run(warm_start, accept_changed_data, started)
    return read_run(directory.root)


def _set_aside(directory: RunDirectory) -> None:
    """Only now, when the new run is known to be possible."""
    directory.unlock()  # removes what the lock alone had made
    if directory.root.exists():
        directory.set_aside()
    directory.lock()


def prepare_setup(config: Config, run_folder: Path | None = None) -> Setup:
    """Everything that can be wrong with the input is found here, before a file is touched."""
    device = choose_device(config.device)
    check_interface(config)
    hourly_rate_usd(config.cost, load_catalogue(config.cost.prices))  # an unknown instance is found here
    opened = open_task(config, run_folder)
    total = config.train.epochs * opened.recipe.batches_per_epoch
    total = total if config.train.max_steps is None else min(total, config.train.max_steps)
    return Setup(config, device, opened, total)


def folder_name(name: str) -> str:
    if not name or "/" in name or name.startswith(".") or "\0" in name:
        raise ConfigError(f"name is {name!r}; a run's name is one folder name, without / and not starting with a dot")
    return name


class _Session:
    """One attempt at a run: owns what must be closed, whatever happens."""

    def __init__(
        self, setup: Setup, learner: Learner, directory: RunDirectory, display: Display, signals: Signals
    ) -> None:
        self._setup = setup
        self._learner = learner
        self._directory = directory
        self._display = display
        self._signals = signals
        self._records = RunRecords(directory, setup.config, setup.dataset, setup.device)
        self._recorder = Recorder(directory.spans / "rank0.jsonl", self._records.attempt)
        if setup.device.kind == "cuda":
            self._recorder.device_clock = CudaClock()
        self._loader: BatchSource | None = None
        self._val_loader: BatchSource | None = None
        self._trackers = Trackers(setup.config.trackers, self._say)
        self._failed_saves = 0
        self._stage_full_said = False
        self._rates = spend_rates(setup.config.cost, load_catalogue(setup.config.cost.prices))

    def run(self, warm_start: str | Path | None, accept_changed_data: bool, started: float | None) -> None:
        setup, config = self._setup, self._setup.config
        resumed = find_resume_point(self._directory, config)
        accepted = check_compatible(resumed, config, setup.dataset, accept_changed_data)
        if self._records.completed and nothing_left(resumed.progress, config):
            self._say(f"{self._directory.root} is complete: {resumed.progress.step} of {setup.total_steps} steps; "
                      "raise train.epochs to go on, or use --fresh to start anew")  # fmt: skip
            return
        restored = _restore(self._learner, resumed, warm_start)
        _require_space(self._directory, self._learner)
        self._recorder.open(started)  # the first file: whatever a user can get wrong was refused above
        for note in (*setup.dataset.notes, *setup.opened.notes, *resumed.notes, *accepted, *restored):
            self._say(note)
        self._records.system.start(self._recorder.wall_seconds, self._say)
        write_text(self._directory.config, dump_config(config))
        for name, text in setup.opened.files.items():
            write_text(self._directory.root / name, text)
        write_json(self._directory.environment, describe_environment(setup.device))
        self._trackers.start(Attempt(self._directory.root, config, self._records.attempt, resumed.progress.step + 1))
        self._train(self._learner, resumed.progress)

    def close(self) -> None:
        for loader in (self._loader, self._val_loader):
            if loader is not None:
                loader.close()
        with suppress(OSError):  # on a full disk the last spans are lost, and the cause of the end was said already
            self._recorder.close()
        self._records.close()

    def _train(self, learner: Learner, progress: Progress) -> None:
        try:
            job = self._job(learner, progress)
        except FlatoutError as error:  # a loader that cannot start, for want of room in /dev/shm or of an answer
            self._records.summarise("failed", str(error), self._recorder, self._stages(), progress.samples_seen)
            raise
        self._summarise("running", None, job)
        try:
            self._follow(job)
        except BaseException as error:
            if isinstance(error, NotFinite):
                self._keep_bad_batch(job)
            elif isinstance(error, StorageError | WorkerFailed):
                self._save(learner, job.progress)  # the weights are good: nothing of the epoch so far is lost
            cause = error if isinstance(error, FlatoutError) else self._explained(error, job)
            self._fail(job, f"{type(error).__name__}: {error}" if cause is None else str(cause))
            if cause is None or cause is error:
                raise
            raise cause from None
        with self._recorder.span("other"):
            digest = state_digest(learner.tensors())
            self._summarise("completed" if job.stopped is None else "stopped", job.stopped, job, digest)
        if self._signals.received is not None:
            raise Interrupted(f"stopped by {job.stopped}")

    def _explained(self, error: BaseException, job: Job) -> RunFailed | None:
        """What a user can do about an error of torch or the system; None for a bug."""
        key = self._setup.opened.batch_key
        size = getattr(self._setup.config.data, key)
        if isinstance(error, torch.OutOfMemoryError):
            return RunFailed(
                f"the device ran out of memory with data.{key} = {size}: {str(error).splitlines()[0]}; "
                f"try data.{key}={max(1, size // 2)}, train.checkpointing=true, or train.accumulate=2"
            )
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return RunFailed(
                f"no room for the records of {self._directory.root} after step {job.progress.step}: {error.strerror}; "
                "free some space, then the same command resumes from the newest checkpoint"
            )
        return None

    def _job(self, learner: Learner, progress: Progress) -> Job:
        setup, config = self._setup, self._setup.config
        workers = workers_for_task(config.data, setup.device.kind, setup.recipe)
        self._loader = open_source(setup.recipe, config.data, workers, True, setup.device.kind, self._recorder)
        if (val_recipe := setup.opened.val_recipe) is not None:
            self._val_loader = open_source(
                val_recipe, config.data, min(workers, 1), False, setup.device.kind,
                memory_taken=self._loader.memory_bytes,
            )  # fmt: skip
        self._say(
            f"training {config.model.name} on {setup.device.name}: {setup.opened.what}, "
            f"{setup.total_steps:,} steps, {workers} worker(s)"
        )
        for note in self._loader.notes:
            self._say(note)
        return Job(
            config, setup.task, learner, self._loader, self._val_loader, self._recorder, progress,
            save=lambda progress: self._save(learner, progress),
            stop_reason=lambda: stop_reason(config.stop, self._signals, self._elapsed_seconds, self._spent_usd),
            total_steps=setup.total_steps,
        )  # fmt: skip

    def _follow(self, job: Job) -> None:
        """Run the loop; write down and show what it yields."""
        self._display.begin(self._title(job), job.progress.step, job.total_steps)
        self._recorder.end_startup()
        for record in train(job):
            self._records_failures()
            if isinstance(record, StepRecord):
                self._records.step(record)
                self._trackers.step(record)
                self._show(job, record)
            else:
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
        self._display.advance(self._title(job), record.step, job.total_steps, figures)

    def _title(self, job: Job) -> str:
        return f"epoch {min(job.progress.epoch + 1, job.config.train.epochs)}/{job.config.train.epochs}"

    def _elapsed_seconds(self) -> float:
        return self._records.earlier_seconds + self._recorder.wall_seconds()

    def _spent_usd(self) -> float | None:
        """By the prices of the summary's ledger: all attempts, and requests to the store."""
        if self._rates is None:
            return None
        data = self._records.data_totals(self._stages())
        return self._rates.spent_usd(self._elapsed_seconds(), data["store_requests"], data["store_bytes"])

    def _stages(self) -> StageSeconds:
        stages = StageSeconds()
        for loader in (self._loader, self._val_loader):
            if loader is not None:
                stages.add(loader.stages)
        own = self._setup.dataset.store_counters()  # worker processes hand theirs over with each batch
        stages.store_requests += own.requests
        stages.store_bytes += own.bytes
        return stages

    def _save(self, learner: Learner, progress: Progress) -> None:
        config, folder = self._setup.config, self._directory.checkpoints
        metric = progress.metrics.get(config.checkpoint.metric) if progress.batch_index == 0 else None
        state = {
            "progress": vars(progress),
            "metric": metric,
            "precision": learner.precision.scalars(),
            "data_fingerprint": self._setup.dataset.fingerprint,
            "samples": {"train": len(self._setup.dataset.train)},
            "attempt": self._records.attempt,
        }
        try:
            checkpoint.save(folder, progress.step, learner.tensors(), state)
            checkpoint.prune(folder, config.checkpoint.keep_top, self._setup.task.better[config.checkpoint.metric])
            self._failed_saves = 0
        except NoSpace as error:
            self._failed_saves += 1
            self._say(f"WARNING: {error}")
            if self._failed_saves >= MAX_FAILED_SAVES:
                raise RunFailed(f"{MAX_FAILED_SAVES} checkpoints in a row could not be written: {error}") from None

    def _fail(self, job: Job, cause: str) -> None:
        with suppress(OSError):
            self._records_failures()
            self._summarise("failed", cause, job)

    def _keep_bad_batch(self, job: Job) -> None:
        """Which samples made the loss or a gradient infinite."""
        if job.current is not None:
            ids = job.current.sample_ids.tolist()
            names = [self._setup.dataset.train.name(i) for i in ids]
            at = {"epoch": job.current.epoch, "batch_index": job.current.index, "step": job.progress.step + 1}
            write_json(self._directory.root / "bad_batch.json", {**at, "sample_ids": ids, "names": names})

    def _summarise(self, status: str, cause: str | None, job: Job, digest: str | None = None) -> None:
        if status != "running":
            self._records.system.stop()
        higher = job.task.better[job.config.checkpoint.metric] == "higher"
        summary = self._records.summarise(
            status, cause, self._recorder, self._stages(), job.progress.samples_seen, digest, higher
        )
        if status != "running":
            self._trackers.finish(summary)

    def _say(self, text: str) -> None:
        self._display.say(text)
        with suppress(OSError), self._directory.log.open("a", encoding="utf-8", errors="surrogateescape") as log:
            log.write(text + "\n")


def prepare_cpu(config: Config) -> None:
    keep_freed_memory()
    torch.set_num_threads(usable_cores() if config.threads == "auto" else config.threads)


def _new_learner(setup: Setup, warm_start: str | Path | None) -> Learner:
    """Built before a file is touched: an unknown model, a precision or weights that do not fit are found here."""
    prepare_cpu(setup.config)
    learner = build_learner(setup.task, setup.config, setup.device)
    if warm_start is not None:
        _start_warm(learner, warm_start)
    return learner


def _start_warm(learner: Learner, weights: str | Path) -> None:
    load_weights(learner.model, checkpoint.load_tensors(Path(weights)))
    if learner.ema is not None:
        learner.ema = Ema.start(learner.model, learner.ema.decay)  # not an average with the random weights


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
    weights = sum(value.nbytes for value in learner.model.state_dict().values())
    checkpoint.require_space(directory.root, 3 * weights)


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
