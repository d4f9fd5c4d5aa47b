"""A process that trains without others: the answers of `Parallel` that cost nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout.data.batch import AnyBatch
from flatout.engine.learner import Learner
from flatout.engine.parallel.protocol import Failures, GlobalBatch, Losses, StopReason, T
from flatout.tasks.protocol import Sums
from flatout.timeline import Recorder


@dataclass(frozen=True)
class OwnBatch:
    """A global batch of which this process has everything."""

    samples: int
    ids: Tensor
    weight: float
    scale: float = 1.0


class OwnValues:
    """A ValueExchange of one."""

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def from_main(self, value: Any) -> Any:
        return value

    def tensors_from_main(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        return dict(tensors or {})


class SingleProcess:
    """`Parallel` of one process: every method returns at once."""

    rank = 0
    world_size = 1
    interface: str | None = None
    group = OwnValues()
    main_is_gone = False

    def together(self, work: Callable[[], T]) -> T:
        return work()

    def begin(
        self,
        learner: Learner,
        recorder: Recorder,
        end: Callable[[str], None],
        foreign_failures: Callable[[Failures], None] = lambda failures: None,
    ) -> list[str]:
        return []

    def measure_link(self, device: torch.device) -> None:
        return None

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> GlobalBatch:
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
