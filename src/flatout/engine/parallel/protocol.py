"""What a run asks of its ranks. `SingleProcess` answers for a process without others, `Ranks` for one of several."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from flatout.data.batch import AnyBatch, Failure
from flatout.engine.learner import Learner
from flatout.tasks.protocol import Sums
from flatout.timeline import Recorder

if TYPE_CHECKING:
    from flatout.engine.parallel.link import LinkFigures

T = TypeVar("T")
StopReason = Callable[[], str | None]
Failures = Mapping[int, Failure]  # by sample id


class GlobalBatch(Protocol):
    """What the ranks told each other about one global batch. Reading a property waits for their answer."""

    @property
    def samples(self) -> int:
        """Of the global batch, without the unusable ones."""
        ...

    @property
    def ids(self) -> Tensor:
        """Of those samples, in the order of the batch."""
        ...

    @property
    def weight(self) -> float:
        """What all ranks' parts of the batch weigh together: of images, samples that are trained on."""
        ...

    @property
    def scale(self) -> float:
        """Factor on this rank's mean loss that makes the mean over ranks the mean over the global batch."""
        ...


@dataclass(frozen=True)
class Losses:
    """The mean loss of the global batch, and which rank was the last to have its gradients: None where no clock of the
    host says it, as on a GPU."""

    mean: float
    slowest_rank: int | None = None
    late_seconds: float | None = None  # behind the median rank
    bytes_sent: int | None = None  # by this machine over the ranks' interface since the last step that was read
    bytes_received: int | None = None


class ValueExchange(Protocol):
    """Small values between ranks. Every method is a collective: all ranks must call it."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        ...

    def from_main(self, value: Any) -> Any:
        """Rank 0's value; what the others pass is ignored."""
        ...

    def tensors_from_main(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Rank 0's tensors by name, on every rank."""
        ...


class Parallel(Protocol):
    """In the order of a run: start, steps, validation and checkpoints, end."""

    rank: int
    world_size: int
    interface: str | None  # network interface towards the other ranks; None without others

    @property
    def group(self) -> ValueExchange: ...

    def together(self, work: Callable[[], T]) -> T:
        """Do the work on every rank; where one fails, all fail with its cause."""
        ...

    def begin(
        self,
        learner: Learner,
        recorder: Recorder,
        end: Callable[[str], None],
        foreign_failures: Callable[[Failures], None] = lambda failures: None,
    ) -> list[str]:
        """Prepare the learner for training, compare where the ranks start, and watch the others from now on.

        `end` is told the cause from another thread when a rank is gone, before the process exits. `foreign_failures`
        is told of unusable samples that other ranks met. Returns notes for the log.
        """
        ...

    def measure_link(self, device: torch.device) -> "LinkFigures | None":
        """Speed of the link between the ranks; None without others."""
        ...

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> GlobalBatch:
        """Begin to tell the others how much this rank's part of the batch weighs, and whether to stop after it."""
        ...

    def idle(self, model: nn.Module) -> AbstractContextManager[None]:
        """Around the filler of a rank that has no sample of a batch: it must leave no trace in the model."""
        ...

    def sync_next(self, wanted: bool) -> None:
        """Whether the next backward exchanges gradients; only the last part of a step does."""
        ...

    def exchange(self) -> AbstractContextManager[None]:
        """Around backward: waiting for the others' gradients is `communication`."""
        ...

    def losses(self, own: float) -> Losses: ...

    def after_step(self, learner: Learner, step: int, epoch: int) -> None:
        """Average the weights, and compare them, at the steps where that is due."""
        ...

    def stop_reason(self, own: StopReason) -> str | None:
        """Why all ranks stop after this step."""
        ...

    def sync_weights(self, learner: Learner) -> None:
        """All ranks hold the same weights and buffers afterwards: before a validation and before a checkpoint."""
        ...

    def validating(self) -> AbstractContextManager[None]:
        """Around a validation: ranks may have different numbers of batches."""
        ...

    def in_order(self, sums: Sequence[Sums]) -> Sequence[Sums]:
        """The sums of every validation batch in the order of the batches, whoever computed them."""
        ...

    def own_tensors(self, learner: Learner) -> dict[str, Tensor] | None:
        """State that differs between ranks (error feedback, momentum of local steps); None where there is none."""
        ...

    def load_own(self, learner: Learner, tensors: Mapping[str, Tensor]) -> None:
        """Take `own_tensors` back, after the learner took over the checkpoint that all ranks share."""
        ...

    @property
    def main_is_gone(self) -> bool:
        """Whether rank 0 was found dead: it can write nothing any more."""
        ...

    def tell_failure(self, cause: str) -> None:
        """Let the others know why this rank ends."""
        ...

    def explain(self, error: BaseException) -> str | None:
        """Which rank is to blame for an exchange that broke; None where the error has nothing to do with it."""
        ...
