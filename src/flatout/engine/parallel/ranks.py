"""Several ranks that train one model: what each asks and tells the others, step by step."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout.config.schema import Config
from flatout.data.batch import AnyBatch, Failure
from flatout.engine.learner import Learner, state_digest
from flatout.engine.parallel.batch_norm import GlobalBatchNorm
from flatout.engine.parallel.gradients import GradientExchange
from flatout.engine.parallel.group import Gathering, Group
from flatout.engine.parallel.local_steps import LocalSteps
from flatout.engine.parallel.single_process import GlobalBatch, Losses, StopReason, T
from flatout.engine.parallel.traffic import Traffic
from flatout.engine.parallel.watchdog import Watchdog
from flatout.errors import EndedBySomeRank, FlatoutError, RunFailed
from flatout.tasks.protocol import Sums
from flatout.timeline import Recorder

_FIRST_STEPS = 2  # of an attempt, after which the ranks' weights are compared


class ToldByRanks:
    """Weights, counts, wishes to stop and unusable samples of one global batch, by rank."""

    def __init__(
        self, rows: Callable[[], list[list[float]]], rank: int, batch: AnyBatch, share: Callable[[AnyBatch], set[int]]
    ) -> None:
        self._rows = rows
        self._rank = rank
        self._batch = batch
        self._share_failures = share

    @property
    def samples(self) -> int:
        return int(sum(row[1] for row in self._rows()))

    @property
    def scale(self) -> float:
        weights = [row[0] for row in self._rows()]
        return weights[self._rank] / sum(weights) * len(weights)

    @property
    def equal_parts(self) -> bool:
        """Whether every rank has as many samples."""
        return len({row[1] for row in self._rows()}) == 1

    @property
    def stop(self) -> bool:
        return any(row[2] for row in self._rows())

    @property
    def ids(self) -> Tensor:
        whole = self._batch.whole_ids
        assert whole is not None, "a source of several ranks says which samples the whole batch has"
        if not any(row[3] for row in self._rows()):
            return whole
        unusable = self._share_failures(self._batch)
        return torch.tensor([each for each in whole.tolist() if each not in unusable], dtype=torch.int64)


class Ranks:
    """One rank of several. `begin` is called once there is a learner; before that, only small values are exchanged."""

    def __init__(self, config: Config, group: Group, interface: str) -> None:
        self.interface = interface
        self.rank, self.world_size = group.place.rank, group.place.world_size
        self.group = group
        self.foreign_failures: Callable[[dict[int, Failure]], None] = lambda failures: None
        self.gradients: GradientExchange | None = None
        self.watchdog: Watchdog | None = None
        self._config = config
        self._recorder: Recorder | None = None
        self._local: LocalSteps | None = None
        self._sharded: nn.Module | None = None  # FSDP: it exchanges gradients by itself
        self._apart = False  # local steps: gradients stay where they are
        self._first_step: int | None = None
        self._told: ToldByRanks | None = None
        self._host_is_ahead = False  # on a GPU the host's clock says when work was queued, not when it was done
        self._batch_norms: list[GlobalBatchNorm] = []
        self._aligned = time.perf_counter()  # when the ranks last met
        self._traffic = Traffic(interface)

    # Before the first step

    def together(self, work: Callable[[], T]) -> T:
        failure: FlatoutError | None = None
        try:
            result = work()
        except FlatoutError as error:
            failure = error
        said = None if failure is None else {"cause": str(failure), "code": failure.exit_code}
        failed = {rank: each for rank, each in enumerate(self.group.gather(said)) if each is not None}
        if not failed:
            return result
        first = min(failed)
        cause, code = failed[first]["cause"], int(failed[first]["code"])
        if self.rank != 0:
            raise EndedBySomeRank(cause, code, quiet=True)  # rank 0 says it
        if failure is not None:
            raise failure
        raise EndedBySomeRank(f"rank {first}: {cause}", code)

    def from_main(self, value: T) -> T:
        told: T = self.group.from_main(value)
        return told

    def begin(self, learner: Learner, recorder: Recorder, end: Callable[[str], None]) -> None:
        """Wrap the model, compare where the ranks start, and watch each other from now on."""
        parallel = self._config.parallel
        self._recorder = recorder
        self._host_is_ahead = learner.device.waits
        self._batch_norms = [module for module in learner.model.modules() if isinstance(module, GlobalBatchNorm)]
        self.watchdog = Watchdog(
            self.group.own_store("watch"), self.group.place, recorder, parallel.silence_seconds, end
        )
        self.watchdog.start()
        if parallel.mode == "ddp":
            self.gradients = GradientExchange(learner.model, parallel, recorder)
            learner.wrapped = self.gradients.wrapped
            if self._config.train.compile:  # the wrapped model: its graphs end where a bucket is full, and send it
                learner.wrapped = cast(nn.Module, torch.compile(learner.wrapped))
        else:
            self._sharded = learner.model
        if parallel.local_steps is not None:
            self._local = LocalSteps(learner.model, parallel)
        self._compare(learner, "before the first step")
        self._aligned = time.perf_counter()

    def close(self) -> None:
        """All ranks are done; whoever leaves with an error instead just goes, and the others notice."""
        if self.watchdog is not None:
            self.watchdog.close()
        self.group.gather(None)  # nobody talks to rank 0's store any more
        self.group.close()

    # A step

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> GlobalBatch:
        if self._first_step is None:
            self._first_step = step
        # a function of step and rank: nothing to save, and dropout differs between ranks
        torch.manual_seed((self._config.train.seed * 1_000_003 + step) * 65_537 % 2**62 + self.rank)
        if self.gradients is not None and self.gradients.powersgd is not None:
            self.gradients.powersgd.begin_step(step)
        self._apart = self._local is not None and self._local.active(batch.epoch)
        values = [weight, len(batch.sample_ids), stop_reason() is not None, len(batch.failures)]
        with self._span("communication"):
            gathering = self.group.begin_gather([float(value) for value in values])
        self._told = ToldByRanks(lambda: self._waited(gathering), self.rank, batch, self._gather_failures)
        return self._told

    @contextmanager
    def idle(self, model: nn.Module) -> Iterator[None]:
        for module in self._batch_norms:
            module.absent = True
        if not self._batch_norms:
            model.eval()  # statistics and random numbers stay as they are
        try:
            yield
        finally:
            model.train()
            for module in self._batch_norms:
                module.absent = False

    def sync_next(self, wanted: bool) -> None:
        if self._host_is_ahead and self._batch_norms and self._told is not None:
            equal_parts = self._told.equal_parts
            for module in self._batch_norms:
                module.equal_parts = equal_parts
        if self.gradients is not None:
            self.gradients.sync_next(wanted and not self._apart)
        elif self._sharded is not None:
            from flatout.engine.parallel.sharding import sync_next

            sync_next(self._sharded, wanted)

    def exchange(self) -> AbstractContextManager[None]:
        return nullcontext() if self._apart or self.gradients is None else self.gradients.exchange()

    def validating(self) -> AbstractContextManager[None]:
        if self._sharded is None:
            return nullcontext()
        from flatout.engine.parallel.sharding import gathered

        return gathered(self._sharded)

    def losses(self, own: float) -> Losses:
        ready = self.gradients.ready if self.gradients is not None else None
        busy_seconds = (time.perf_counter() if ready is None else ready) - self._aligned
        with self._span("communication"):
            rows = self.group.begin_gather([own, busy_seconds]).rows()
        mean = math.fsum(row[0] for row in rows) / len(rows)
        if self._host_is_ahead:
            return Losses(mean, None, None, *self._traffic.since_last())
        busy = [row[1] for row in rows]
        if self.rank == 0 and self._recorder is not None:
            for rank, seconds in enumerate(busy):
                self._recorder.lane("arrival", f"rank {rank}", self._aligned, seconds)
        self._aligned = time.perf_counter()
        slowest = max(range(len(busy)), key=busy.__getitem__)
        return Losses(mean, slowest, busy[slowest] - statistics.median_low(busy), *self._traffic.since_last())

    def after_step(self, learner: Learner, step: int, epoch: int) -> None:
        met = True
        if self._local is not None:
            with self._span("communication"):
                met = self._local.after_step(epoch)
        first = self._first_step is not None and step < self._first_step + _FIRST_STEPS
        if met and (first or step % self._config.parallel.verify_every == 0):
            with self._span("communication"):
                self._compare(learner, f"after step {step}")

    def stop_reason(self, own: StopReason) -> str | None:
        if self._told is None or not self._told.stop:
            return None
        reasons = [reason for reason in self.group.gather(own()) if reason is not None]
        return reasons[0] if reasons else "one of the ranks asked to stop"

    # Validation and checkpoints

    def settle(self, learner: Learner) -> None:
        with self._span("communication"):
            if self._local is not None:
                self._local.merge()
            for buffer in learner.model.buffers():
                dist.broadcast(buffer, 0)

    def in_order(self, sums: Sequence[Sums]) -> Sequence[Sums]:
        by_rank = self.group.gather(list(sums))
        rounds = range(max(len(each) for each in by_rank))
        return [each[turn] for turn in rounds for each in by_rank if turn < len(each)]

    @property
    def keeps_state(self) -> bool:
        return self._local is not None or (self.gradients is not None and self.gradients.powersgd is not None)

    def own_tensors(self, learner: Learner) -> dict[str, Tensor]:
        """State that each rank has for itself: error feedback, momentum of local steps."""
        state: dict[str, Tensor] = {}
        if self.gradients is not None and self.gradients.powersgd is not None:
            state |= {f"powersgd/{name}": value for name, value in self.gradients.powersgd.tensors().items()}
        if self._local is not None:
            state |= self._local.tensors()
            own = {name: value for name, value in learner.tensors().items() if name.startswith("optimizer/")}
            state |= own
        return state

    def load_own(self, learner: Learner, tensors: Mapping[str, Tensor]) -> None:
        """After the learner took over the checkpoint that all ranks share."""
        if self._local is not None:
            self._local.restart()
            self._local.load(tensors)
        if not tensors:
            return
        if self.gradients is not None and self.gradients.powersgd is not None:
            prefix = "powersgd/"
            own = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
            self.gradients.powersgd.load(own, learner.device.torch)
        if self._local is not None:
            learner.load_optimizer(tensors)

    def share_failures(self, failures: Mapping[int, Failure]) -> dict[int, Failure]:
        """Unusable samples that any rank met."""
        rows = [[each.sample_id, each.name, each.reason] for each in failures.values()]
        return {row[0]: Failure(*row) for part in self.group.gather(rows) for row in part}

    # The end

    @property
    def main_is_gone(self) -> bool:
        return self.watchdog is not None and 0 in self.watchdog.gone

    def tell_failure(self, cause: str) -> None:
        """So that the others can name it."""
        if self.watchdog is not None:
            with suppress(RuntimeError, OSError):  # the store may be what is gone
                self.watchdog.publish_failure(cause)

    def explain(self, error: BaseException) -> str | None:
        """Which rank is to blame for an exchange that broke; None where the error has nothing to do with it."""
        texts = ("gloo", "NCCL", "Connection", "Timed out", "TCPStore", "ProcessGroup")
        if not isinstance(error, RuntimeError) or not any(text in str(error) for text in texts):
            return None
        blamed = self.watchdog.blame() if self.watchdog is not None else None
        return blamed or f"the exchange between ranks broke: {str(error).splitlines()[0]}"

    # Inside

    def _span(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._recorder is None else self._recorder.span(name)

    def _waited(self, gathering: Gathering) -> list[list[float]]:
        if gathering.values is not None:
            return gathering.values
        with self._span("communication"):
            return gathering.rows()

    def _compare(self, learner: Learner, when: str) -> None:
        """Ranks that do not hold the same weights train several models, and nobody would notice."""
        if self._sharded is not None:
            return  # each rank has its own part
        wrapped = any(isinstance(each, nn.parallel.DistributedDataParallel) for each in learner.wrapped.modules())
        digest = state_digest(dict(learner.model.named_parameters()))
        said = self.group.gather({"digest": digest, "wrapped": wrapped})
        bare = [rank for rank, each in enumerate(said) if not each["wrapped"]]
        different = [rank for rank, each in enumerate(said) if each["digest"] != said[0]["digest"]]
        if bare:
            raise RunFailed(f"the model of rank(s) {bare} is not wrapped for the exchange of gradients")
        if different:
            raise RunFailed(
                f"rank(s) {different} hold other weights than rank 0 {when}: the ranks do not train the same model. "
                "Is the model that computes the loss the one that was wrapped?"
            )

    def _gather_failures(self, batch: AnyBatch) -> set[int]:
        failures = self.share_failures({each.sample_id: each for each in batch.failures})
        self.foreign_failures(failures)
        return set(failures)
