"""From a run's directory to its model with the weights of a checkpoint, ready to compute. Nothing is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.config.tasks import DEFAULT_TASK, TASKS, metric_named
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.views import View, resolve_view
from flatout.data.text.parallel_text import VOCABULARY_FILE
from flatout.data.text.vocabulary import read_vocabulary
from flatout.engine import checkpoint
from flatout.engine.devices import choose_device
from flatout.engine.learner import Learner, build_learner, load_weights
from flatout.engine.weight_files import read_weights
from flatout.engine.weights import renamed
from flatout.errors import ConfigError, RunDirectoryError
from flatout.runs import RunDirectory, read_run
from flatout.runs.tables import EPOCH_COLUMNS
from flatout.tasks.classification.task import Classification
from flatout.tasks.protocol import NamesOutputs, Task
from flatout.tasks.setup import TaskSetup, open_task
from flatout.training.setup import memory_explained, prepare_compute
from flatout.untrusted import blamed_as, read_json

BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Weights:
    """Tensors of a checkpoint, of ours or a plain state dict, and what is known of them."""

    path: Path
    tensors: Mapping[str, Tensor]
    step: int | None = None  # None of a file that no run wrote
    classes: tuple[str, ...] = ()
    metrics: Mapping[str, float] | None = None  # of the training's own validation of exactly these weights


@dataclass(frozen=True)
class TrainedRun:
    """A run's model, with the weights that its training validated: the averaged ones, where there are any."""

    directory: RunDirectory
    config: Config
    task: Task
    learner: Learner
    weights: Weights
    opened: TaskSetup | None  # with its dataset, where that was asked for

    @property
    def outputs(self) -> NamesOutputs:
        """The task, where it says what its outputs stand for; refused where it does not."""
        if not isinstance(self.task, NamesOutputs):
            raise ConfigError(
                f"{self.directory.root} was trained for the task {self.config.task}, which does not say what its "
                "outputs are; give it output_names and probabilities (NamesOutputs, docs/extend.md)"
            )
        return self.task

    @property
    def one_class_each(self) -> bool:
        """Whether every sample has one class, which is one of the outputs."""
        return isinstance(self.task, NamesOutputs) and self.task.output_names is None

    @property
    def classes(self) -> tuple[str, ...]:
        """What the outputs stand for, in their order."""
        own = self.task.output_names if isinstance(self.task, NamesOutputs) else None
        return self.weights.classes if own is None else own

    @property
    def view(self) -> View:
        """Of the validation: what a picture must look like for this model."""
        return resolve_view(self.config.data.eval_view, self.config.views)


def require_run(run: Path) -> RunDirectory:
    """The directory of a run; refused where there is none."""
    directory = RunDirectory(run)
    if not directory.exists:
        raise RunDirectoryError(f"no run in {run}; `flatout runs` lists those under runs/")
    return directory


def read_trained_config(run: Path, changes: Mapping[str, Any] | None = None, device: str | None = None) -> Config:
    """The run's own recipe, for one process with a loader of its own; `changes` are dotted keys as of --set."""
    directory = require_run(run)
    overrides = dict(changes or {})
    if device is not None:
        overrides["device"] = device
    config = load_config(directory.config, overrides).config
    if config.device == "emulated":
        raise ConfigError(
            f"{run} was trained on an emulated device: its weights never learned anything; train with --set device=auto"
        )
    alone = type(config.parallel)()
    data = config.data.model_copy(update={"shared": "off"})
    model = config.model.model_copy(update={"weights": None})
    return config.model_copy(update={"parallel": alone, "data": data, "model": model})


def find_weights(run: Path, config: Config, which: str) -> Weights:
    """`best` by checkpoint.metric, `last`, or a file as model.weights takes. A damaged one is refused."""
    directory = RunDirectory(run)
    if which not in (BEST, LAST):
        return _from_file(directory, Path(which))
    saved = checkpoint.list_saved(directory.checkpoints)
    if which == BEST:
        saved = checkpoint.best_first(directory.checkpoints, metric_named(config.checkpoint.metric).better)[::-1]
    if not saved:
        raise RunDirectoryError(f"{run} has no checkpoint yet; wait for the first, or give --checkpoint FILE")
    return _from_checkpoint(directory, saved[-1].path)


def _from_file(directory: RunDirectory, path: Path) -> Weights:
    if checkpoint.is_ours(path):
        return _from_checkpoint(directory, path)
    return Weights(path, read_weights(path).tensors, classes=_class_names(directory))


def _from_checkpoint(directory: RunDirectory, path: Path) -> Weights:
    found = checkpoint.load(path)
    state, step = found.state, int(found.state["step"])
    classes = tuple(state.get("classes") or ()) or _class_names(directory)
    own = directory.checkpoints.resolve() == path.resolve().parent
    return Weights(path, found.tensors, step, classes, _validated(directory, step) if own else None)


def _class_names(directory: RunDirectory) -> tuple[str, ...]:
    try:
        with blamed_as(RunDirectoryError):
            names = read_json(directory.classes)
    except FileNotFoundError:
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _validated(directory: RunDirectory, step: int) -> dict[str, float] | None:
    """From epochs.csv, by step: a checkpoint between two validations has none of its own."""
    for row in read_run(directory.root).epochs:
        if row.get("step") == str(step):
            values = {name: float(text) for name, text in row.items() if name not in EPOCH_COLUMNS and text}
            return values or None
    return None


def open_trained(
    run: Path,
    which: str = BEST,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    with_data: bool = False,
    exact: bool = False,
    place: tuple[int, int] = (0, 1),
) -> TrainedRun:
    """The model of a run. `with_data` opens its dataset too; `exact` computes in fp32, uncompiled, as exports do.

    `place` is rank and number of ranks: each has the whole model and its part of the validation batches.
    """
    config = read_trained_config(run, changes, device)
    if exact:
        train = config.train.model_copy(update={"precision": "fp32", "compile": False, "channels_last": False})
        config = config.model_copy(update={"train": train})
    directory, weights = RunDirectory(run), find_weights(run, config, which)
    opened = _opened(config, directory, place) if with_data or config.task not in TASKS else None
    task = _task(config, directory, weights) if opened is None else opened.task
    if opened is not None and config.spec.has_images:
        _check_classes(run, config, opened, weights)
    chosen = choose_device(config.device)
    prepare_compute(config, chosen)
    with memory_explained(config):
        learner = build_learner(task, config, chosen)
        _load(learner, weights.tensors)
    return TrainedRun(directory, config, task, learner, weights, opened)


def _opened(config: Config, directory: RunDirectory, place: tuple[int, int]) -> TaskSetup:
    """Opened as one rank does that is alone, since the batches of a training step are not what is asked for."""
    rank, ranks = place
    if config.task not in TASKS:
        return open_task(config, directory.root, rank, ranks)
    opened = open_task(config, directory.root)
    plan: Any = opened.val_plan
    return opened if plan is None else replace(opened, val_plan=replace(plan, rank=rank, world_size=ranks))


def _task(config: Config, directory: RunDirectory, weights: Weights) -> Task:
    """Without the dataset, which need not be on this machine."""
    if config.task != DEFAULT_TASK:
        from flatout.tasks.translation.task import Translation

        return Translation(config, read_vocabulary(directory.root / VOCABULARY_FILE))
    if not weights.classes:
        raise RunDirectoryError(f"{weights.path} does not name its classes and {directory.classes} is not there")
    view, eval_view = (resolve_view(name, config.views) for name in (config.data.view, config.data.eval_view))
    return Classification(config, len(weights.classes), view, eval_view)


def _check_classes(run: Path, config: Config, opened: TaskSetup, weights: Weights) -> None:
    """Before weights that do not fit are loaded: labels of another dataset would mean other classes."""
    there = opened.dataset.classes
    if weights.classes and there != weights.classes:
        different = next((name for name in there if name not in weights.classes), None)
        what = f"has a class {different!r}" if different is not None else f"has {len(there)} classes"
        raise ConfigError(
            f"{config.data.path} {what}, but {run} was trained on {len(weights.classes)}: "
            f"{', '.join(weights.classes[:3])}, …; give the data it was trained on, or --data with its classes"
        )


def _load(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    load_weights(learner.model, renamed(tensors, learner.model.state_dict()))
    averages = {name.removeprefix("ema/"): value for name, value in tensors.items() if name.startswith("ema/")}
    if learner.ema is not None:
        if averages:
            learner.ema.load(averages)
        else:
            learner.ema = None
    learner.model.eval()


def validation_plan(trained: TrainedRun) -> BatchPlan | None:
    """Of pictures; None where there is no validation split or samples are no pictures."""
    plan = None if trained.opened is None else trained.opened.val_plan
    return plan if isinstance(plan, BatchPlan) else None
