"""Sends a run's records to TensorBoard, Weights & Biases or MLflow as well: from a thread of their own, so that a
tracker that is slow, broken or not installed neither stops training nor slows it."""

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flatout import plugins
from flatout.config.loading import flat
from flatout.config.schema import Config
from flatout.engine.progress import EpochRecord, StepRecord

_STEP_SECONDS = 0.25  # a record costs up to 1.5 ms of the interpreter's time (wandb); steps.csv has every step
_WAITING_RECORDS = 10_000
_FINISH_SECONDS = 30.0


@dataclass(frozen=True)
class TrackedAttempt:
    """What a tracker is told of the run before its first record."""

    directory: Path
    config: Config
    number: int
    first_step: int

    @property
    def title(self) -> str:
        return self.config.name if self.number == 1 else f"{self.config.name}-attempt{self.number}"

    def settings(self) -> dict[str, Any]:
        return dict(flat(self.config))


class Tracker(Protocol):
    """Gets a run's records in the trackers' thread; an exception ends it, never the run. Made with a TrackedAttempt."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Figures by name, such as train/loss, after a step or an epoch: at most four times a second."""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The last call, with what summary.json will hold."""
        ...


class TensorBoard:
    """Event files in the run directory; `tensorboard --logdir runs` shows all runs side by side."""

    def __init__(self, attempt: TrackedAttempt) -> None:
        from torch.utils.tensorboard import SummaryWriter

        again = attempt.first_step if attempt.number > 1 else None  # hides the steps that are now done once more
        self._writer: Any = SummaryWriter(str(attempt.directory / "tensorboard"), purge_step=again)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._writer.add_text("summary", f"```\n{json.dumps(summary, indent=2)}\n```")
        self._writer.close()


class WeightsAndBiases:
    """Offline unless WANDB_MODE says otherwise; `wandb sync runs/<name>/wandb/offline-*` uploads."""

    def __init__(self, attempt: TrackedAttempt) -> None:
        import wandb

        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)  # system.csv has the machine
        self._run: Any = wandb.init(
            project="flatout",
            name=attempt.title,
            group=attempt.config.name,
            dir=str(attempt.directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=attempt.settings(),
            settings=quiet,
        )

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({**numbers(summary), "status": summary["status"], "cause": summary["cause"]})
        self._run.finish(exit_code=int(summary["status"] == "failed"))


class MlFlow:
    """The file store `mlruns` beside the run directories, or MLFLOW_TRACKING_URI."""

    def __init__(self, attempt: TrackedAttempt) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow 3.13 and later refuse it otherwise
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._entities = entities
        store = (attempt.directory.absolute().parent / "mlruns").as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", store))
        known = self._client.get_experiment_by_name("flatout")
        experiment = known.experiment_id if known else self._client.create_experiment("flatout")
        self._id = self._client.create_run(experiment, run_name=attempt.title).info.run_id
        settings = [entities.Param(name, str(value)[:500]) for name, value in attempt.settings().items()]
        for start in range(0, len(settings), 100):  # the most that one call takes
            self._client.log_batch(self._id, params=settings[start : start + 100])
        self._step = 0

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._step, now = step, int(time.time() * 1000)
        self._client.log_batch(
            self._id, metrics=[self._entities.Metric(name, value, now, step) for name, value in scalars.items()]
        )

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.log(self._step, {f"summary/{name}": value for name, value in numbers(summary).items()})
        self._client.set_tag(self._id, "flatout.status", summary["status"])
        self._client.set_terminated(self._id, "FAILED" if summary["status"] == "failed" else "FINISHED")


_KINDS: dict[str, Callable[[TrackedAttempt], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlFlow,
}


def _kind(name: str) -> Callable[[TrackedAttempt], Tracker]:
    return _KINDS.get(name) or plugins.load("trackers", name, "trackers")


def numbers(summary: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every figure of a summary by its dotted name, such as `accuracy.top1`."""
    found: dict[str, float] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


def step_scalars(record: StepRecord) -> dict[str, float]:
    """What a tracker gets of a step, by its name there."""
    scalars = {
        "train/learning_rate": record.learning_rate,
        "speed/samples_per_second": record.samples / record.step_seconds,
        "speed/data_wait_seconds": record.data_wait_seconds,
    }
    return scalars if record.loss is None else {"train/loss": record.loss, **scalars}


def epoch_scalars(record: EpochRecord) -> dict[str, float]:
    """Names are paths: none may be the folder of another, or MLflow's file store has no place for it."""
    metrics = {f"val/{name.removeprefix('val_')}": value for name, value in record.metrics.items()}
    scalars = {"train/epoch": float(record.epoch), **metrics}
    return scalars if record.train_loss is None else {"train/epoch_loss": record.train_loss, **scalars}


@dataclass
class _Said:
    """Each trouble is said once."""

    say: Callable[[str], None]
    about: set[str] = field(default_factory=set)

    def once(self, about: str, text: str) -> None:
        if about not in self.about:
            self.about.add(about)
            with suppress(Exception):
                self.say(text)


class Trackers:
    """Takes records from the training loop without waiting, and hands them on. With no names it does nothing."""

    def __init__(self, names: Sequence[str], say: Callable[[str], None]) -> None:
        self._names = list(dict.fromkeys(names))
        self._said = _Said(say)
        self._waiting: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(_WAITING_RECORDS)
        self._step_sent = -_STEP_SECONDS
        self._thread: threading.Thread | None = None

    def start(self, attempt: TrackedAttempt) -> None:
        if self._names:
            self._thread = threading.Thread(target=self._run, args=(attempt,), name="trackers", daemon=True)
            self._thread.start()

    def step(self, record: StepRecord) -> None:
        if self._names and time.monotonic() - self._step_sent >= _STEP_SECONDS:
            self._step_sent = time.monotonic()
            self._send(lambda tracker: tracker.log(record.step, step_scalars(record)))

    def epoch(self, record: EpochRecord) -> None:
        self._send(lambda tracker: tracker.log(record.step, epoch_scalars(record)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The final figures; waits a while for what is still on its way."""
        self._send(lambda tracker: tracker.finish(summary))
        self._send(None)
        if self._thread is not None:
            self._thread.join(_FINISH_SECONDS)
            if self._thread.is_alive():
                self._said.once("late", f"trackers: not done after {_FINISH_SECONDS:.0f} s; the rest is not sent")

    def _send(self, action: Callable[[Tracker], None] | None) -> None:
        if not self._names:
            return
        try:
            self._waiting.put_nowait(action)
        except queue.Full:
            self._said.once("full", f"trackers: {_WAITING_RECORDS:,} records wait already; newer ones are not sent")

    def _run(self, attempt: TrackedAttempt) -> None:
        trackers: dict[str, Tracker] = {}
        for name in self._names:
            self._guarded(name, trackers, lambda: trackers.update({name: _kind(name)(attempt)}))  # noqa: B023
        while trackers and (action := self._waiting.get()) is not None:
            for name, tracker in list(trackers.items()):
                self._guarded(name, trackers, lambda: action(tracker))  # noqa: B023
        self._names = []  # nobody is left to send to

    def _guarded(self, name: str, trackers: dict[str, Tracker], action: Callable[[], None]) -> None:
        try:
            action()
        except ImportError as error:
            self._said.once(
                name, f"tracker {name}: {error}; pip install 'flatout[trackers]'. Training goes on without it"
            )
        except Exception as error:
            trackers.pop(name, None)
            self._said.once(name, f"tracker {name}: {type(error).__name__}: {error}; training goes on without it")
