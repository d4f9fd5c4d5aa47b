"""A run's model on its validation split, through the code of training's own validation, and what it said of each
sample. Ranks share the batches; rank 0 has the result."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from flatout.data.batch import BatchSource, Failure
from flatout.engine.loop import Job, evaluate
from flatout.engine.parallel import Parallel, SingleProcess
from flatout.engine.parallel.ranks import share_failures
from flatout.engine.progress import Progress
from flatout.errors import ConfigError, DataError
from flatout.tasks.protocol import NamesOutputs, Sums, Task
from flatout.tasks.translation.task import Translation
from flatout.timeline import Recorder
from flatout.trained.opening import TrainedRun
from flatout.trained.scores import SampleAnswers
from flatout.trained.several_looks import LOOKS, SeveralLooks

_OF_LOOKS = ": "  # between the name of looks and that of a sum
Advance = Callable[[int], None]  # told how many samples are done, on this rank


@dataclass
class Evaluated:
    """Figures of the whole split; answers where samples have one class each, texts where they are translated."""

    metrics: dict[str, float]
    samples: int
    seconds: float
    answers: SampleAnswers | None = None
    texts: list[tuple[str, str]] | None = None  # translation and reference
    failures: dict[int, Failure] = field(default_factory=dict)
    several_looks: dict[str, dict[str, float]] = field(default_factory=dict)  # figures with test-time augmentation


class _Heard(nn.Module):
    """Passes on what it is given and keeps what the model says."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._inner = [model]  # not as a child: its weights stay where they are
        self.said: Tensor | None = None

    def forward(self, *inputs: Any) -> Any:
        self.said = self._inner[0](*inputs)
        return self.said


class _Listening:
    """The task as training validates with it; keeps labels, ids and probabilities of every batch on the way."""

    def __init__(self, task: Task, outputs: NamesOutputs | None, advance: Advance, looks: Sequence[str] = ()) -> None:
        self._task = task
        self._looks = looks
        self._outputs = outputs  # None where there is no class for each sample: then only figures are kept
        self._advance = advance
        self._under_way: deque[Tensor] = deque()  # ids of batches on the device, the oldest first
        self.done = 0
        self.several_looks: dict[str, dict[str, float]] = {}
        self.rows: list[list[Any]] = [[], [], [], [], []]

    def to_device(self, batch: Any, device: Any) -> Any:
        self._under_way.append(batch.sample_ids.clone())  # a loader may use the batch's memory again
        return self._task.to_device(batch, device)

    def evaluate(self, model: nn.Module, inputs: Any) -> Sums:
        ids = self._under_way.popleft()
        if self._outputs is not None:
            heard = _Heard(model)
            sums = self._task.evaluate(heard, inputs)
            assert heard.said is not None
            self._keep(ids, inputs.labels, self._outputs.probabilities(heard.said.float()))
            for name in self._looks:
                again = self._task.evaluate(SeveralLooks(model, LOOKS[name]), inputs)
                sums |= {f"{name}{_OF_LOOKS}{key}": value for key, value in again.items()}
        else:
            sums = self._task.evaluate(model, inputs)
        self.done += len(ids)
        self._advance(self.done)
        return sums

    def metrics(self, sums: Sums) -> dict[str, float]:
        for name in self._looks:
            prefix = f"{name}{_OF_LOOKS}"
            theirs = {key.removeprefix(prefix): value for key, value in sums.items() if key.startswith(prefix)}
            self.several_looks[name] = self._task.metrics(theirs)
        return self._task.metrics({key: value for key, value in sums.items() if _OF_LOOKS not in key})

    def _keep(self, ids: Tensor, labels: Tensor, chances: Tensor) -> None:
        confidence, predicted = chances.max(1)
        of_label = chances.gather(1, labels[:, None])[:, 0]
        for kept, tensor in zip(self.rows, (ids, labels, predicted, confidence, of_label), strict=True):
            kept.extend(tensor.tolist())


def evaluate_trained(
    trained: TrainedRun,
    ranks: Parallel | None = None,
    advance: Advance = lambda done: None,
    looks: Sequence[str] = (),
) -> Evaluated:
    """Evaluate on the validation plan of `trained.opened`. Raises where there is none. `looks` are names of LOOKS: ways
    of test-time augmentation to be measured too."""
    ranks = ranks or SingleProcess()
    opened, config = trained.opened, trained.config
    if opened is None or opened.val_plan is None:
        raise DataError(f"{config.data.path} has no validation split and too few samples to hold some out; use --data")
    classified = trained.one_class_each
    if looks and not classified:
        raise ConfigError(f"--tta is for pictures with one class each, not for task {config.task}; leave it out")
    listening = _Listening(trained.task, trained.outputs if classified else None, advance, looks)
    texts: list[list[list[str]]] = []  # translations and references of each batch
    if isinstance(trained.task, Translation):
        trained.task.watch = lambda found, wanted: texts.append([found, wanted])
    workers = opened.choose_workers(config.data, trained.learner.device.kind, opened.val_plan)
    started = time.perf_counter()
    with closing(
        opened.open_source(opened.val_plan, config.data, workers, False, trained.learner.device.kind, epochs=1)
    ) as source:
        metrics = evaluate(_job(trained, cast(Task, listening), source, ranks))
        failures = share_failures(ranks.group, source.quarantine)
    seconds = time.perf_counter() - started
    rows, said = ranks.group.gather(listening.rows), ranks.group.gather(texts)
    pairs = [pair for part in said for batch in part for pair in zip(*batch, strict=True)]
    return Evaluated(
        metrics,
        sum(ranks.group.gather(listening.done)),
        seconds,
        _answers(rows) if classified else None,
        pairs or None,
        failures,
        listening.several_looks,
    )


def _job(trained: TrainedRun, task: Task, source: BatchSource, ranks: Parallel) -> Job:
    return Job(
        trained.config,
        task,
        trained.learner,
        source,
        source,
        Recorder(None),
        Progress(),
        save=lambda progress: None,
        stop_reason=lambda: None,
        total_steps=0,
        ranks=ranks,
    )


def _answers(parts: Sequence[list[list[Any]]]) -> SampleAnswers:
    """Of all ranks, in the order of the samples."""
    kinds = (np.int64, np.int64, np.int64, np.float64, np.float64)
    columns: list[Any] = [
        np.array([value for part in parts for value in part[at]], kind) for at, kind in enumerate(kinds)
    ]
    order = np.argsort(columns[0], kind="stable")
    return SampleAnswers(*(column[order] for column in columns))
