"""A task, ready to train: its dataset, what a batch of it is, who makes the batches.

The package of a task, `flatout.tasks.<name>`, has a module `opening` with a function `open_task(config, run_folder,
rank, world_size) -> TaskSetup`; it is imported when a run asks for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from flatout import plugins
from flatout.config.schema import Config, DataConfig
from flatout.config.tasks import METRICS, TASKS
from flatout.data.batch import AnyDataset, BatchSource
from flatout.decisions import Choice
from flatout.errors import ConfigError
from flatout.tasks.protocol import Task
from flatout.timeline import Recorder


class AnyPlan(Protocol):
    """Everything that determines the batches of one rank."""

    @property
    def batches_per_epoch(self) -> int: ...


class OpenSource(Protocol):
    """How the batches of a plan are opened."""

    def __call__(
        self,
        plan: Any,
        /,
        config: DataConfig,
        workers: int | Choice[int],
        look_ahead: bool = True,
        device_kind: str = "cpu",
        recorder: Recorder | None = None,
        memory_taken: int = 0,
        epochs: int | None = None,
    ) -> BatchSource:
        """Open the batches of one of the setup's plans.

        `look_ahead` prepares the start of the next epoch at the end of one, `memory_taken` are bytes of the budget that
        another source has, `epochs` are those that will be asked for, where that is known.
        """
        ...


@dataclass(frozen=True)
class TaskSetup:
    """What `open_task` of a task gives."""

    dataset: AnyDataset
    task: Task
    plan: AnyPlan
    val_plan: AnyPlan | None
    what: str  # the training samples in a few words
    global_batch: int  # over all ranks: samples, or tokens where batches are cut by tokens
    chance_loss_of: int  # an untrained model's loss is the logarithm of this
    choose_workers: Callable[[DataConfig, str, Any], Choice[int]]  # by configuration, kind of device and plan
    open_source: OpenSource
    files: Mapping[str, str] = field(default_factory=dict)  # name -> text: what a run needs besides its weights
    notes: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # of a task of the user's own: what checkpoint.metric may be besides ours


class TaskOpener(Protocol):
    """A task of the user's own (`task: ./file.py:open_mine`, or an entry point of flatout.tasks) is opened by this."""

    def __call__(self, config: Config, run_folder: Path | None, rank: int, world_size: int, /) -> TaskSetup: ...


def open_task(config: Config, run_folder: Path | None = None, rank: int = 0, world_size: int = 1) -> TaskSetup:
    """Open the dataset of the recipe's task. `run_folder` is that of a run which may go on."""
    opener = import_task(config.task)
    if config.task in TASKS:
        opened = opener(config, run_folder, rank, world_size)
        if config.checkpoint.metric not in (known := (*config.spec.metrics, *opened.metrics)):
            raise ConfigError(f"checkpoint.metric is {config.checkpoint.metric}, but there are {', '.join(known)}")
        return opened
    with plugins.blamed(f"task is {config.task!r}"):
        opened = opener(config, run_folder, rank, world_size)
    if not isinstance(opened, TaskSetup):
        raise ConfigError(f"task is {config.task!r}, which returned a {type(opened).__name__}, not a TaskSetup")
    if config.checkpoint.metric not in (metrics := (*METRICS, *opened.metrics)):
        raise ConfigError(
            f"checkpoint.metric is {config.checkpoint.metric}, but {config.task} has {', '.join(metrics)}"
        )
    return opened


def import_task(name: str) -> TaskOpener:
    """The `open_task` of a task's package, which takes some 0.03 s the first time, or of the user's own."""
    if name in TASKS:
        return cast(TaskOpener, import_module(f"flatout.tasks.{name}.opening").open_task)
    return cast(TaskOpener, plugins.load("tasks", name, "task"))
