"""What the loop asks of the other ranks (`Parallel`), and the answers of a process that is alone (`SingleProcess`)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor, nn

from flatout.data.batch import AnyBatch
from flatout.engine.learner import Learner
from flatout.tasks.protocol import Sums

T = TypeVar("T")
StopReason = Callable[[], str | None]


class GlobalBatch(Protocol):
    """What the ranks told each other about one global batch. Asking waits for the answer."""

    @property
    def samples(self) -> int:
        """Of the global batch, without the unusable ones."""
        ...

    @property
    def ids(self) -> Tensor:
        """Of those samples, in the order of the batch."""
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


@dataclass(frozen=True)
class OwnBatch:
    samples: int
    ids: Tensor
    scale: float = 1.0


class Parallel(Protocol):
    rank: int
    world_size: int

    def together(self, work: Callable[[], T]) -> T:
        """Do the work on every rank; where one fails, all fail with its cause."""
        ...

    def from_main(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        ...

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> GlobalBatch:
        """Begin to tell the others how much this rank's part of the batch weighs, and whether to stop after it."""
        ...

    def idle(self, model: nn.Module) -> AbstractContextManager[None]:
        """Around the made-up part of a rank that has no sample of a batch: it must leave no trace in the model."""
        ...

    def sync_next(self, wanted: bool) -> None:
        """Whether the next backward exchanges gradients; only the last part of a step does."""
        ...

    def exchange(self) -> AbstractContextManager[None]:
        """Around backward: waiting for the others' gradients is `communication`."""
        ...

    def losses(self, own: float) -> Losses: ...

    def after_step(self, learner: Learner, step: int, epoch: int) -> None:
        """Average the weights, and compare them, where their time has come."""
        ...

    def stop_reason(self, own: StopReason) -> str | None:
        """Why all ranks stop after this step."""
        ...

    def settle(self, learner: Learner) -> None:
        """All ranks hold the same weights and buffers afterwards: before a validation and before a checkpoint."""
        ...

    def validating(self) -> AbstractContextManager[None]:
        """Around a validation: ranks may have different numbers of batches."""
        ...

    def in_order(self, sums: Sequence[Sums]) -> Sequence[Sums]:
        """The sums of every validation batch in the order of the batches, whoever computed them."""
        ...


class SingleProcess:
    rank = 0
    world_size = 1

    def together(self, work: Callable[[], T]) -> T:
        return work()

    def from_main(self, value: T) -> T:
        return value

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> GlobalBatch:
        return OwnBatch(len(batch.sample_ids), batch.sample_ids)

    def idle(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def sync_next(self, wanted: bool) -> None:
        pass

    def exchange(self) -> AbstractContextManager[None]:
        return nullcontext()

    def losses(self, own: float) -> Losses:
        return Losses(own)

    def after_step(self, learner: Learner, step: int, epoch: int) -> None:
        pass

    def stop_reason(self, own: StopReason) -> str | None:
        return own()

    def settle(self, learner: Learner) -> None:
        pass

    def validating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def in_order(self, sums: Sequence[Sums]) -> Sequence[Sums]:
        return sums
