"""One rank of several that train one model: what it asks and tells the others, step by step."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor, nn

from flatout.config.schema import Config
from flatout.data.batch import AnyBatch, Failure
from flatout.engine.learner import Learner
from flatout.engine.parallel.global_batch import GatheredBatch
from flatout.engine.parallel.group import Gathering, Group
from flatout.engine.parallel.link import LinkFigures, measure_link
from flatout.engine.parallel.model_sync import ModelSync
from flatout.engine.parallel.single_process import Failures, Losses, OwnValues, StopReason, T
from flatout.engine.parallel.watchdog import Watchdog
from flatout.errors import EndedBySomeRank, FlatoutError
from flatout.machine.files import read_int
from flatout.tasks.protocol import Sums
from flatout.timeline import Recorder

_FIRST_STEPS = 2  # of an attempt, after which the ranks' weights are compared


def share_failures(group: Group | OwnValues, failures: Failures) -> dict[int, Failure]:
    """Unusable samples that any rank met, by sample id; all ranks ask together."""
    rows = [[each.sample_id, each.name, each.reason] for each in failures.values()]
    return {row[0]: Failure(*row) for part in group.gather(rows) for row in part}


class Traffic:
    """What a network interface has sent and received, by the kernel's own counters."""

    def __init__(self, interface: str) -> None:
        self._folder = f"/sys/class/net/{interface}/statistics"
        self._before = self._read()

    def since_last(self) -> list[int | None]:
        """Bytes sent and received since this was asked before; None where the system does not say."""
        before, self._before = self._before, self._read()
        pairs = zip(self._before, before, strict=True)
        return [None if now is None or then is None else now - then for now, then in pairs]

    def _read(self) -> list[int | None]:
        return [read_int(f"{self._folder}/{name}") for name in ("tx_bytes", "rx_bytes")]


class Ranks:
    """One of several processes. Before `begin`, only small values are exchanged; steps come after it."""

    _model: ModelSync  # from `begin` on

    def __init__(self, config: Config, group: Group, interface: str) -> None:
        self.interface: str | None = interface
        self.rank, self.world_size = group.place.rank, group.place.world_size
        self.group = group
        self.watchdog: Watchdog | None = None
        self._config = config
        self._recorder = Recorder(None)  # that of the run from `begin` on
        self._foreign_failures: Callable[[Failures], None] = lambda failures: None
        self._first_step: int | None = None
        self._batch: GatheredBatch | None = None  # of the present step
        self._host_is_ahead = False  # on a GPU the host's clock says when work was queued, not when it was done
        self._aligned = time.perf_counter()  # when the ranks last met
        self._traffic = Traffic(interface)

    # Before the first step

    def together(self, work: Callable[[], T]) -> T:
        """Do the work on every rank; where one fails, all fail with its cause."""
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
        self._recorder = recorder
        self._foreign_failures = foreign_failures
        self._host_is_ahead = learner.device.waits
        place, silence_seconds = self.group.place, self._config.parallel.silence_seconds
        self.watchdog = Watchdog(self.group.own_store("watch"), place, recorder, silence_seconds, end)
        self.watchdog.start()
        self._model = ModelSync(learner, self._config, recorder)
        self._model.compare(self.group, "before the first step")
        self._aligned = time.perf_counter()
        return [] if place.warning is None else [place.warning]

    def measure_link(self, device: torch.device) -> LinkFigures | None:
        """Speed of the link between the ranks; None without others."""
        assert self.interface is not None
        return measure_link(self.group, device, self.interface)

    # A step

    def exchange_batch(self, step: int, weight: float, batch: AnyBatch, stop_reason: StopReason) -> GatheredBatch:
        """Begin to tell the others how much this rank's part of the batch weighs, and whether to stop after it."""
        if self._first_step is None:
            self._first_step = step
        # a function of step and rank: nothing to save, and dropout differs between ranks
        torch.manual_seed((self._config.train.seed * 1_000_003 + step) * 65_537 % 2**62 + self.rank)
        self._model.begin_step(step, batch.epoch)
        values = [weight, len(batch.sample_ids), stop_reason() is not None, len(batch.failures)]
        with self._recorder.span("communication"):
            gathering = self.group.begin_gather([float(value) for value in values])

        def unusable() -> set[int]:
            failures = share_failures(self.group, {each.sample_id: each for each in batch.failures})
            self._foreign_failures(failures)
            return set(failures)

        self._batch = GatheredBatch(lambda: _rows(gathering, self._recorder), self.rank, batch, unusable)
        return self._batch

    def idle(self, model: nn.Module) -> AbstractContextManager[None]:
        """Around the filler of a rank that has no sample of a batch: it must leave no trace in the model."""
        return self._model.idle(model)

    def sync_next(self, wanted: bool) -> None:
        """Whether the next backward exchanges gradients; only the last part of a step does."""
        if self._host_is_ahead and self._model.batch_norms and self._batch is not None:
            equal_parts = self._batch.equal_parts
            for module in self._model.batch_norms:
                module.equal_parts = equal_parts
        self._model.sync_next(wanted)

    def exchange(self) -> AbstractContextManager[None]:
        """Around backward: waiting for the others' gradients is `communication`."""
        return self._model.exchange()

    def losses(self, own: float) -> Losses:
        ready = self._model.gradients_ready
        busy_seconds = (time.perf_counter() if ready is None else ready) - self._aligned
        with self._recorder.span("communication"):
            rows = self.group.begin_gather([own, busy_seconds]).rows()
        mean = math.fsum(row[0] for row in rows) / len(rows)
        if self._host_is_ahead:
            return Losses(mean, None, None, *self._traffic.since_last())
        busy = [row[1] for row in rows]
        if self.rank == 0:
            for rank, seconds in enumerate(busy):
                self._recorder.lane("arrival", f"rank {rank}", self._aligned, seconds)
        self._aligned = time.perf_counter()
        slowest = max(range(len(busy)), key=busy.__getitem__)
        return Losses(mean, slowest, busy[slowest] - statistics.median_low(busy), *self._traffic.since_last())

    def after_step(self, learner: Learner, step: int, epoch: int) -> None:
        """Average the weights, and compare them, at the steps where that is due."""
        same_weights = self._model.after_step(epoch)
        first = self._first_step is not None and step < self._first_step + _FIRST_STEPS
        if same_weights and (first or step % self._config.parallel.verify_every == 0):
            with self._recorder.span("communication"):
                self._model.compare(self.group, f"after step {step}")

    def stop_reason(self, own: StopReason) -> str | None:
        """Why all ranks stop after this step."""
        if self._batch is None or not self._batch.stop:
            return None
        reasons = [reason for reason in self.group.gather(own()) if reason is not None]
        return reasons[0] if reasons else "one of the ranks asked to stop"

    # Validation and checkpoints

    def sync_weights(self, learner: Learner) -> None:
        """All ranks hold the same weights and buffers afterwards: before a validation and before a checkpoint."""
        with self._recorder.span("communication"):
            self._model.sync_weights()

    def validating(self) -> AbstractContextManager[None]:
        """Around a validation: ranks may have different numbers of batches."""
        # who only evaluates never begins: every rank holds the whole model
        return nullcontext() if self.watchdog is None else self._model.validating()

    def in_order(self, sums: Sequence[Sums]) -> Sequence[Sums]:
        """The sums of every validation batch in the order of the batches, whoever computed them."""
        by_rank = self.group.gather(list(sums))
        rounds = range(max(len(each) for each in by_rank))
        return [each[turn] for turn in rounds for each in by_rank if turn < len(each)]

    def own_tensors(self, learner: Learner) -> dict[str, Tensor] | None:
        """State that differs between ranks (error feedback, momentum of local steps); None where there is none."""
        return self._model.own_tensors()

    def load_own(self, learner: Learner, tensors: Mapping[str, Tensor]) -> None:
        """Take `own_tensors` back, after the learner took over the checkpoint that all ranks share."""
        self._model.load_own(tensors)

    # The end

    @property
    def main_is_gone(self) -> bool:
        """Whether rank 0 was found dead: it can write nothing any more."""
        return self.watchdog is not None and 0 in self.watchdog.gone

    def tell_failure(self, cause: str) -> None:
        """Let the others know why this rank ends."""
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

    def close(self) -> None:
        """All ranks are done. A rank that fails does not call this: it just exits, and the others notice."""
        if self.watchdog is not None:
            self.watchdog.close()
        self.group.gather(None)  # nobody talks to rank 0's store any more
        self.group.close()


def _rows(gathering: Gathering, recorder: Recorder) -> list[list[float]]:
    if gathering.values is not None:
        return gathering.values
    with recorder.span("communication"):
        return gathering.rows()
