"""Where training is, and what it says of every step and epoch: plain values that checkpoints and tables hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Progress:
    """Where training is: all that a checkpoint needs besides tensors."""

    epoch: int = 0
    batch_index: int = 0
    step: int = 0
    samples_seen: int = 0
    epoch_samples: int = 0  # of this epoch so far
    loss_sum: float = 0.0  # of this epoch, weighted by samples, over the steps whose loss was read
    loss_samples: int = 0  # of those steps
    metrics: dict[str, float] = field(default_factory=dict)  # of the last validation
    best: float | None = None
    best_epoch: int | None = None
    validations_since_best: int = 0
    ended: bool = False  # the last epoch is validated and saved


@dataclass(frozen=True)
class StepRecord:
    """One row of steps.csv: figures of the global batch, seconds of this rank."""

    step: int
    epoch: int
    batch_index: int
    samples: int
    samples_digest: str
    loss: float | None
    learning_rate: float
    step_seconds: float
    data_wait_seconds: float
    time_unix: float
    cpu_seconds: float  # of this thread, after the data came: the rest of the step it waited
    slowest_rank: int | None = None  # the last to have its gradients
    late_seconds: float | None = None  # by how much, behind the median rank
    bytes_sent: int | None = None  # over the ranks' interface, by this machine
    bytes_received: int | None = None
    skipped_samples: int | None = None  # of `samples`, those that were looked at and not trained on (train.selective)
    group_rates: Mapping[str, float] = field(default_factory=dict)  # columns of their own, where the recipe has groups


@dataclass(frozen=True)
class UsedBatch:
    """Which samples a step had."""

    step: int
    epoch: int
    batch_index: int
    sample_ids: Tensor  # of the global batch


@dataclass(frozen=True)
class EpochRecord:
    """One row of epochs.csv."""

    epoch: int
    step: int
    samples: int
    train_loss: float | None
    metrics: dict[str, float]
    learning_rate: float
    time_unix: float


Record = StepRecord | EpochRecord
