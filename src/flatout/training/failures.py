"""What happens when an attempt ends badly: the cause in words, what can be saved, and the last records."""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from flatout.engine.loop import Job, finite_tensors
from flatout.engine.parallel import Parallel
from flatout.engine.progress import UsedBatch
from flatout.errors import DataChanged, EndedBySomeRank, FlatoutError, NotFinite, RunFailed, StorageError, WorkerFailed
from flatout.machine.available_memory import explain_memory
from flatout.plugins import own_code_error
from flatout.runs import RunDirectory
from flatout.runs.directory import mark_failed, write_json
from flatout.training.accounting import Accounting
from flatout.training.saving import Saving


@dataclass(frozen=True)
class FailureHandling:
    """For the time between the first step and the last summary."""

    job: Job
    directory: RunDirectory
    ranks: Parallel
    saving: Saving
    accounting: Accounting
    sample_name: Callable[[int], str]  # of a training sample, by its id
    say: Callable[[str], None]

    def end(self, error: BaseException) -> BaseException:
        """Save and write down what is possible; returns what is to be raised, `error` itself where that says enough."""
        if isinstance(error, NotFinite):
            self._keep_bad_batch()
        elif isinstance(error, StorageError | WorkerFailed | DataChanged) and self._can_save_alone:
            with suppress(NotFinite):  # the weights are good: nothing of the epoch so far is lost
                self.saving.save(self.job.progress)
        cause = error if isinstance(error, FlatoutError) else self._explained(error)
        self._record(f"{type(error).__name__}: {error}" if cause is None else str(cause))
        if cause is None:
            return error
        if self.ranks.rank != 0:
            return EndedBySomeRank(str(cause), cause.exit_code, quiet=not self._speaks_for_main)
        return cause

    def lost_rank(self, cause: str) -> None:
        """The last thing this process does, in the watchdog's thread: another rank is silent, and the main thread
        waits for it in vain."""
        cause = f"training ended after step {self.job.progress.step}: {cause}; the same command resumes"
        self.say(cause)
        self._record(cause)

    @property
    def _can_save_alone(self) -> bool:
        """Several ranks must gather a checkpoint together, and the others do not know of this rank's trouble."""
        return self.ranks.world_size == 1

    @property
    def _speaks_for_main(self) -> bool:
        """Whether this rank says and writes what rank 0 cannot any more."""
        return self.ranks.rank == 1 and self.ranks.main_is_gone

    def _record(self, cause: str) -> None:
        """The failed run's last summary, and a word to the other ranks."""
        self.ranks.tell_failure(cause)
        if self._speaks_for_main:
            mark_failed(self.directory, cause)
        try:
            self.saving.keep_home(self.job.progress.step)
            self.accounting.record_quarantine()
            self.accounting.summarise("failed", cause, self.job)
        except (OSError, MemoryError):  # no room: at least how it ended is said
            with suppress(OSError):
                if self.ranks.rank == 0:
                    mark_failed(self.directory, cause)

    def _keep_bad_batch(self) -> None:
        """Which samples may have made the loss or a gradient infinite: all since the last loss that was good."""
        if self.job.unread and self.ranks.rank == 0:
            used = [self._named(each) for each in self.job.unread]
            write_json(self.directory.root / "bad_batch.json", {**used[-1], "since_last_read": used})

    def _named(self, used: UsedBatch) -> dict[str, Any]:
        ids = used.sample_ids.tolist()
        return {**vars(used), "sample_ids": ids, "names": [self.sample_name(i) for i in ids]}

    def _explained(self, error: BaseException) -> FlatoutError | None:
        """What a user can do about an error of torch or the system; None for a bug."""
        config, step = self.job.config, self.job.progress.step
        if (blamed := self.ranks.explain(error)) is not None:
            return RunFailed(f"training ended after step {step}: {blamed}; the same command resumes")
        key, size = config.batch_key, config.batch_setting
        if isinstance(error, torch.OutOfMemoryError):
            return RunFailed(
                f"the device ran out of memory with {key} = {size}: {str(error).splitlines()[0]}; "
                f"try {key}={max(1, size // 2)}, train.checkpointing=true, or train.accumulate=2"
            )
        if (short := explain_memory(error, f"after step {step}, with {key} = {size}")) is not None:
            return short
        if isinstance(error, FileNotFoundError) and self.directory.fate() != "here":
            return RunFailed(self._home_is_gone())
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return RunFailed(
                f"no room for the records of {self.directory.root} after step {step}: {error.strerror}; "
                "free some space, then the same command resumes from the newest checkpoint"
            )
        return own_code_error(error)

    def _home_is_gone(self) -> str:
        """A record found no directory between two checkpoints."""
        before, job = self.directory.root, self.job
        self.saving.keep_home(job.progress.step)
        saved = self._can_save_alone
        if saved:
            self.saving.write(finite_tensors(job.learner, job.progress.step, keep=True), job.progress)
        return self.saving.lost_home or (
            f"the run directory {before} was deleted while training; what is known of the run was written anew after "
            f"step {job.progress.step}, {'with' if saved else 'without'} its weights; "
            f"{'the same command resumes' if saved else 'start it again'}"
        )
