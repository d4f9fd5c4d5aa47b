"""What a run needs before it writes a file: device, data, task and learner, each checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from flatout.config.schema import Config
from flatout.config.tasks import DEFAULT_TASK
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.data.audit.first_look import refuse_undecodable
from flatout.data.batch import AnyDataset
from flatout.data.source.dataset import Dataset
from flatout.decisions import Choice
from flatout.decisions.compute import choose_precision, choose_threads
from flatout.engine.cuda_defaults import prepare_cuda, with_precision
from flatout.engine.devices import Device, choose_device, keep_freed_memory
from flatout.engine.learner import Learner, build_learner
from flatout.engine.parallel import Parallel, SingleProcess
from flatout.engine.parameters import trained_share
from flatout.engine.schedules import describe, scaled_rate, warmup_steps
from flatout.engine.weights import load_weights
from flatout.errors import ConfigError, RunFailed
from flatout.machine.available_memory import explain_memory
from flatout.machine.budgets import usable_cores
from flatout.runs import RunDirectory
from flatout.tasks.protocol import Task, TriesOut
from flatout.tasks.setup import AnyPlan, TaskSetup, import_task, open_task
from flatout.timeline.startup import StartupClock
from flatout.training.monitoring import check_interface
from flatout.training.resuming import Resumed, precision_so_far


@dataclass(frozen=True)
class Setup:
    """What was checked before anything is written."""

    config: Config  # with the precision that `auto` stands for
    device: Device
    opened: TaskSetup
    total_steps: int  # of the whole run, earlier attempts included

    @property
    def dataset(self) -> AnyDataset:
        return self.opened.dataset

    @property
    def task(self) -> Task:
        return self.opened.task

    @property
    def plan(self) -> AnyPlan:
        """Of the training batches."""
        return self.opened.plan

    def peak_rate(self, world_size: int) -> float:
        """The highest learning rate, scaled for the number of ranks where the recipe asks for it."""
        return scaled_rate(self.config.train.lr, self.config.parallel.scale_lr, world_size)

    def schedule(self, world_size: int) -> str:
        """The learning rate's way through the run, in words."""
        train = self.config.train
        warmup = warmup_steps(train, self.plan.batches_per_epoch)
        return describe(train, self.total_steps, self.peak_rate(world_size), warmup)


def prepare_setup(
    config: Config, ranks: Parallel | None = None, run_folder: Path | None = None, startup: StartupClock | None = None
) -> Setup:
    """Check everything that can be wrong with the input, before a file is touched.

    `run_folder` is that of a run which may go on: its own vocabulary is then used.
    """
    ranks, startup = ranks or SingleProcess(), startup or StartupClock()
    with startup.part("device"):
        device = choose_device(config.device)
    config = with_precision(config, choose_precision(config, device.facts).value)
    check_interface(config)
    hourly_rate_usd(config.cost, load_catalogue(config.cost.prices))  # an unknown instance is found here
    import_task(config.task)  # before the clock of the listing runs
    with startup.part("listing"):
        opened = open_task(config, run_folder, ranks.rank, ranks.world_size)
        if ranks.rank == 0 and isinstance(opened.dataset, Dataset) and config.data.max_quarantine_share < 1:
            refuse_undecodable(opened.dataset.train)
    total = config.train.epochs * opened.plan.batches_per_epoch
    total = total if config.train.max_steps is None else min(total, config.train.max_steps)
    setup = Setup(config, device, opened, total)
    setup.schedule(ranks.world_size)  # one of the user's own may be wrong
    return setup


def run_precision(config: Config, directory: RunDirectory, begins: bool) -> Choice[str]:
    """What train.precision=auto stands for: that of the run so far, or what suits this device where a run begins."""
    so_far = None if begins else precision_so_far(directory)
    return choose_precision(config, choose_device(config.device).facts, so_far)


def folder_name(name: str) -> str:
    """A run's name, which is also a folder's; refused where it cannot be one."""
    if not name or "/" in name or name.startswith(".") or "\0" in name:
        raise ConfigError(f"name is {name!r}; a run's name is one folder name, without / and not starting with a dot")
    return name


def prepare_compute(config: Config, device: Device) -> None:
    """Set up torch for this process: threads, allocator, CUDA's arithmetic."""
    keep_freed_memory()
    torch.set_num_threads(compute_threads(config, device.kind))
    if device.kind == "cuda":
        prepare_cuda(config.train.tf32)


def compute_threads(config: Config, device_kind: str) -> int:
    """1 beside a GPU: what torch does on the host is small there, and every thread that does some of it would start
    a team of its own."""
    return choose_threads(config.threads, device_kind, usable_cores()).value


def new_learner(setup: Setup, weights: str | Path | None) -> Learner:
    """Built before a file is touched: an unknown model, a precision or weights that do not fit are found here.

    `weights` are those to begin with, where a run begins (`first_weights`).
    """
    if weights is not None and setup.device.kind == "emulated":
        raise ConfigError("--warm-start takes trained weights but device is emulated, which has none; leave one out")
    prepare_compute(setup.config, setup.device)
    learner = build_learner(setup.task, setup.config, setup.device)
    if isinstance(setup.task, TriesOut) and setup.config.task == DEFAULT_TASK:
        setup.task.try_out(learner.model, setup.device.torch)
    if weights is not None:
        _start_warm(setup, learner, weights)
    return learner


def first_weights(config: Config, warm_start: str | Path | None) -> str | Path | None:
    """Where a run that begins has its weights from; None for random ones."""
    if warm_start is not None and config.model.weights is not None:
        raise ConfigError(
            f"--warm-start is {warm_start} and model.weights is {config.model.weights}: both give the first weights; "
            "keep one"
        )
    return config.model.weights if warm_start is None else warm_start


def restore(setup: Setup, learner: Learner, resumed: Resumed, weights: str | Path | None) -> list[str]:
    """Give the learner the state of the checkpoint, or the weights to begin with; notes for the log."""
    frozen = _frozen_note(learner)
    if resumed.tensors is not None:
        learner.precision.load_scalars(resumed.precision)
        return [*learner.load(resumed.tensors), *frozen]
    return [*(_start_warm(setup, learner, weights) if weights is not None else ()), *frozen]


def _start_warm(setup: Setup, learner: Learner, weights: str | Path) -> tuple[str, ...]:
    report = load_weights(learner.model, str(weights), setup.dataset.classes, setup.config.model.name)
    learner.restart_averages()  # none with the random weights
    return report.notes


def _frozen_note(learner: Learner) -> list[str]:
    trained, whole = trained_share(learner.model)
    return [] if trained == whole else [f"model.freeze: {trained:,} of {whole:,} parameters are trained"]


@contextmanager
def memory_explained(config: Config) -> Iterator[None]:
    """Around what needs no batch, where a smaller batch would not help: too little memory becomes one line."""
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
