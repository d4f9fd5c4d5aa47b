"""What each task is, without torch: the one place that names them. `flatout.tasks.<name>` is the code of a task.

A new task is a `TaskSpec` here and a package there with a module `opening` (tasks/setup.py says what it offers).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """What best means in a run, and how it is written: `factor` turns it into what people read."""

    name: str  # of its column in epochs.csv
    title: str
    higher_is_better: bool = True
    factor: float = 1.0
    unit: str = ""
    log_line: str = "{:.3f}"  # with its name, for the log of a run

    @property
    def better(self) -> str:
        return "higher" if self.higher_is_better else "lower"

    def write(self, value: float) -> str:
        return f"{self.factor * value:.{1 if self.factor == 100 or self.unit else 3}f}{self.unit}"

    def in_log(self, value: float) -> str:
        return self.log_line.format(self.factor * value)


METRICS = {
    each.name: each
    for each in (
        Metric("top1", "top-1", True, 100, " %", "top-1 {:.1f} %"),
        Metric("top5", "top-5", True, 100, " %", "top-5 {:.1f} %"),
        Metric("bleu", "BLEU", True, 1, " points", "BLEU {:.1f}"),
        Metric("val_loss", "validation loss", False, log_line="val loss {:.3f}"),
        Metric("train_loss", "training loss", False, log_line="train loss {:.3f}"),
    )
}


def metric_named(name: str) -> Metric:
    """Of a task of the user's own, too: losses, errors and perplexities fall as a model learns, all else rises."""
    falls = name.endswith(("loss", "error", "perplexity"))
    own = Metric(name, name.replace("_", " "), not falls, log_line=f"{name} {{:.3f}}")
    return METRICS.get(name, own)


def best_metric(config: Mapping[str, Any]) -> Metric:
    """What a run's config.yaml, as it was read, means by best."""
    return metric_named(str((config.get("checkpoint") or {}).get("metric") or "top1"))


@dataclass(frozen=True)
class TaskSpec:
    name: str
    metrics: tuple[str, ...]  # what checkpoint.metric may be
    batch_keys: tuple[str, ...]  # keys that set the size of a batch; the first that is set counts
    batch_unit: Literal["samples", "tokens"]  # what batches are cut by
    sample_noun: str  # plural, for reports
    keys: tuple[str, ...]  # recipe keys (or sections) that only this task uses
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where the schema's own default makes no sense
    has_images: bool = True  # samples are decoded, staged and shared as images are
    not_emulated: str | None = None  # why device: emulated cannot stand for a real one


_CLASSIFICATION = TaskSpec(
    "classification",
    metrics=("top1", "top5", "val_loss", "train_loss"),
    batch_keys=("data.global_batch", "data.batch_size"),
    batch_unit="samples",
    sample_noun="samples",
    keys=(
        "data.view",
        "data.eval_view",
        "data.batch_size",
        "data.classes",
        "data.unlisted",
        "data.label_column",
        "data.split",
        "data.balance",
        "data.class_weights",
        "data.samples_per_class",
        "data.cache",
        "data.stage",
        "data.memory",
        "data.shared",
        "data.worker_kind",
        "views",
        "model.stem",
        "model.zero_gamma",
        "model.blur_pool",
        "model.squeeze_excite",
        "model.stochastic_depth",
        "train.channels_last",
        "train.kernels",
        "train.loss",
        "train.selective",
        "train.loss_options",
        "validate.batch_size",
        "validate.metrics",
        "emulated",
    ),
)
_TRANSLATION = TaskSpec(
    "translation",
    metrics=("bleu", "val_loss", "train_loss"),
    batch_keys=("data.batch_tokens",),
    batch_unit="tokens",
    sample_noun="pairs of lines",
    keys=(
        "data.source_language",
        "data.target_language",
        "data.batch_tokens",
        "data.max_tokens",
        "data.vocabulary",
        "model.dropout",
        "model.pre_norm",
        "validate.beam",
    ),
    defaults={
        "model.name": "transformer-small",
        "train.optimizer": "adamw",
        "train.lr": 1e-3,
        "train.beta2": 0.98,
        "train.weight_decay": 0.0,
        "train.schedule": "inverse-sqrt",
        "checkpoint.metric": "bleu",
    },
    has_images=False,
    not_emulated="its steps depend on sentence lengths",
)
TASKS = {spec.name: spec for spec in (_CLASSIFICATION, _TRANSLATION)}
DEFAULT_TASK = _CLASSIFICATION.name


def spec_of(task: object) -> TaskSpec:
    """By the `task` of a configuration or summary; runs that do not say one, or one of another version, are those of
    the default task."""
    return TASKS.get(task, _CLASSIFICATION) if isinstance(task, str) else _CLASSIFICATION
