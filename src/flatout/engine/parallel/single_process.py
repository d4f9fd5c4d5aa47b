"""A process that trains without others: the answers of `Ranks` that cost nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flatout.data.batch import AnyBatch, Failure
from flatout.engine.learner import Learner
from flatout.tasks.protocol import Sums

T = TypeVar("T")
StopReason = Callable[[], str | None]
Failures = Mapping[int, Failure]  # by sample id


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
    """A global batch of which this process has everything."""

    samples: int
    ids: Tensor
    weight: float
    scale: float = 1.0


class OwnValues:
    """What a `Group` gives to one rank."""

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def from_main(self, value: Any) -> Any:
        return value

    def tensors_from_main(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        return dict(tensors or {})


class SingleProcess:
    """Every method returns at once; `Ranks` says what each is for."""

    rank = 0
    world_size = 1
    interface: str | None = None
    group = OwnValues()
    main_is_gone = False

    def together(self, work: Callable[[], T]) -> T:
        return work()

    def begin(self, learner: object, recorder: object, end: object, foreign_failures: object = None) -> list[str]:
        return []

    def measure_link(self, device: torch.device) -> None:
        return None

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> OwnBatch:
        return OwnBatch(len(batch.sample_ids), batch.sample_ids, weight)

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

    def sync_weights(self, learner: Learner) -> None:
        pass

    def validating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def in_order(self, sums: Sequence[Sums]) -> Sequence[Sums]:
        return sums

    def own_tensors(self, learner: Learner) -> dict[str, Tensor] | None:
        return None

    def load_own(self, learner: Learner, tensors: Mapping[str, Tensor]) -> None:
        pass

    def tell_failure(self, cause: str) -> None:
        pass

    def explain(self, error: BaseException) -> str | None:
        return None
