"""How the ranks' models stay one model: exchanged gradients (DDP), shards (FSDP) or weights averaged now and then."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout.config.schema import Config
from flatout.engine.learner import Learner, state_digest, under
from flatout.engine.parallel.batch_norm import GlobalBatchNorm
from flatout.engine.parallel.gradients import GradientExchange
from flatout.engine.parallel.group import Group
from flatout.engine.parallel.local_steps import LocalSteps
from flatout.engine.parallel.powersgd import PowerSgd
from flatout.errors import RunFailed
from flatout.timeline import Recorder

_POWERSGD = "powersgd/"  # prefix of its tensors in the state of a rank


class ModelSync:
    """Wraps the learner's model when it is made, on every rank alike."""

    def __init__(self, learner: Learner, config: Config, recorder: Recorder) -> None:
        parallel = config.parallel
        self._learner = learner
        self._recorder = recorder
        self._gradients: GradientExchange | None = None
        self._local: LocalSteps | None = None
        self._sharded: nn.Module | None = None  # FSDP: it exchanges gradients by itself
        self._apart = False  # local steps: gradients stay where they are
        self.batch_norms = [module for module in learner.model.modules() if isinstance(module, GlobalBatchNorm)]
        if parallel.mode == "ddp":
            self._gradients = GradientExchange(learner.model, parallel, recorder)
            learner.wrapped = self._gradients.wrapped
            if config.train.compile:  # the wrapped model: its graphs end where a bucket is full, and send it
                learner.wrapped = cast(nn.Module, torch.compile(learner.wrapped))
        else:
            self._sharded = learner.model
        if parallel.local_steps is not None:
            self._local = LocalSteps(learner.model, parallel)

    @property
    def gradients_ready(self) -> float | None:
        """When this rank had its last gradient of the last step, by time.perf_counter; None where nobody noted it."""
        return None if self._gradients is None else self._gradients.ready

    def begin_step(self, step: int, epoch: int) -> None:
        if (powersgd := self._powersgd) is not None:
            powersgd.begin_step(step)
        self._apart = self._local is not None and self._local.active(epoch)

    @contextmanager
    def idle(self, model: nn.Module) -> Iterator[None]:
        for module in self.batch_norms:
            module.absent = True
        if not self.batch_norms:
            model.eval()  # statistics and random numbers stay as they are
        try:
            yield
        finally:
            model.train()
            for module in self.batch_norms:
                module.absent = False

    def sync_next(self, wanted: bool) -> None:
        if self._gradients is not None:
            self._gradients.sync_next(wanted and not self._apart)
        elif self._sharded is not None:
            from flatout.engine.parallel.sharding import sync_next

            sync_next(self._sharded, wanted)

    def exchange(self) -> AbstractContextManager[None]:
        return nullcontext() if self._apart or self._gradients is None else self._gradients.exchange()

    def validating(self) -> AbstractContextManager[None]:
        if self._sharded is None:
            return nullcontext()
        from flatout.engine.parallel.sharding import gathered

        return gathered(self._sharded)

    def after_step(self, epoch: int) -> bool:
        """Whether all ranks hold the same weights now."""
        if self._local is None:
            return True
        with self._recorder.span("communication"):
            return self._local.after_step(epoch)

    def sync_weights(self) -> None:
        if self._local is not None:
            self._local.merge()
        for buffer in self._learner.model.buffers():
            dist.broadcast(buffer, 0)

    def own_tensors(self) -> dict[str, Tensor] | None:
        if self._local is None and self._powersgd is None:
            return None
        state: dict[str, Tensor] = {}
        if self._powersgd is not None:
            state |= {f"{_POWERSGD}{name}": value for name, value in self._powersgd.tensors().items()}
        if self._local is not None:
            state |= self._local.tensors()
            tensors = self._learner.tensors()
            state |= {name: value for name, value in tensors.items() if name.startswith("optimizer/")}
        return state

    def load_own(self, tensors: Mapping[str, Tensor]) -> None:
        if self._local is not None:
            self._local.restart()
            self._local.load(tensors)
        if not tensors:
            return
        if self._powersgd is not None:
            self._powersgd.load(under(_POWERSGD, tensors), self._learner.device.torch)
        if self._local is not None:
            self._learner.load_optimizer(tensors)

    def compare(self, group: Group, when: str) -> None:
        """Ranks that do not hold the same weights train several models, and nobody would notice."""
        if self._sharded is not None:
            return  # each rank has its own part
        learner = self._learner
        wrapped = any(isinstance(each, nn.parallel.DistributedDataParallel) for each in learner.wrapped.modules())
        digest = state_digest(dict(learner.model.named_parameters()))
        said = group.gather({"digest": digest, "wrapped": wrapped})
        bare = [rank for rank, each in enumerate(said) if not each["wrapped"]]
        different = [rank for rank, each in enumerate(said) if each["digest"] != said[0]["digest"]]
        if bare:
            raise RunFailed(f"the model of rank(s) {bare} is not wrapped for the exchange of gradients")
        if different:
            raise RunFailed(
                f"rank(s) {different} hold other weights than rank 0 {when}: the ranks do not train the same model. "
                "Is the model that computes the loss the one that was wrapped?"
            )

    @property
    def _powersgd(self) -> PowerSgd | None:
        return None if self._gradients is None else self._gradients.powersgd
